// SPDX-License-Identifier: Apache-2.0
// What ranks are compared by besides their gradients: 64-bit values with a kind, hashes of
// parameters and buffers, and the samples they drew (docs/packet_format.md).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace presum {

// Kinds below 1,024 are reserved for presum; their numbers never change. A value marked "double"
// holds the bits of a double. docs/runlog_format.md is generated from these comments: one line
// each.
enum class FingerprintKind : std::uint32_t {
  kRngTorch = 1,
  kRngDevice = 2,
  kRngNumpy = 3,
  kRngPython = 4,
  kForwardDraws = 5,  // torch generators that the first forward used: host's 1 + device's 2
  kSamplerClass = 10,
  kSamplerSeed = 11,
  kSamplerEpoch = 12,
  kSamplerRank = 13,
  kSamplerReplicas = 14,
  kSamplerLength = 15,
  kSamplerShuffle = 16,
  kSamplerDropLast = 17,
  kSamplerSetsEpoch = 18,  // 1: the sampler has a set_epoch method
  kDataClass = 20,
  kDataLength = 21,
  kDataAttributes = 22,
  kDataPass = 23,        // completed iterations over the loader: 0 in the first epoch
  kDataBatch = 24,       // position of the step's last batch in the epoch
  kDataSubset = 25,      // the positions of the underlying dataset that a Subset holds
  kDataContents = 26,    // rows of the tensors that the dataset holds, including labels
  kDataEnded = 27,       // number of the last epoch that a loader of the dataset ended, plus one
  kMode = 30,            // 1 training, 0 evaluation
  kModes = 31,           // which modules are in training mode
  kDropout = 32,         // largest active dropout rate (double)
  kDropouts = 33,        // all dropout rates of the model
  kNormBatches = 34,     // batches that the model's first BatchNorm has seen, before any broadcast
  kTiedParameters = 35,  // which parameters have several names
  kOptimizerClass = 40,
  kOptimizerSettings = 41,  // all hyperparameters of all parameter groups
  kLearningRate = 42,       // of the first parameter group (double)
  kWeightDecay = 43,        // of the first parameter group (double)
  kDtype = 50,              // dtypes of the parameters and of autocast
  kForwardPrecision = 80,   // dtypes of autocast and the parameters inside one layer's forward
  kDeterminism = 51,        // torch's determinism flags
  kWrapperForward = 61,     // 1: the forward pass went through the data-parallel wrapper
  kGradientWeight = 62,     // the rank's gradient / gradient of its mean loss per token (double)
  kZeroShare = 63,          // share of gradient elements that are exactly zero (double)
  kClipNorm = 64,           // total norm used to clip the gradients (double)
  kClippedNorm = 65,        // norm of these gradients just before clipping (double)
  kGradNormTold = 66,       // norm of the reduced gradient, as the program reports it (double)
  kGradNormThen = 67,       // norm of the gradients when the program reports that norm (double)
  kPassesCleared = 68,     // backward passes cleared before the optimizer step that used the others
  kForwardsDetached = 69,  // training forwards without a backward, up to the optimizer step
  kBatch = 70,             // all samples of the step, in any order
  kUnreadInputs = 71,      // input tensors of the step's forward passes that presum did not read
  kLabels = 72,            // what loaders returned besides the samples
  kGradChanged = 73,       // factor on `.grad` between two backward passes of the step (double)
  kClipLimit = 76,         // max_norm of the clipping (double)
  kUnchangedShare = 74,  // share of 16-bit parameters that the optimizer left as they were (double)
  kRecomputed = 75,      // result of computing a micro-batch again; 0: the same gradient
  kComparedDifferent = 77,  // tensors that the program compared with its parameters and that differ
  kLeftOver = 78,      // 1: the first pass added to gradients that the last optimizer step had used
  kClipNormType = 79,  // norm type of the clip norms if not 2; NaN if clip_norm is unknown
  kStepsOfOthers = 81,  // steps of optimizers unknown to presum that should move parameters
  kStepsInVain = 82,    // steps_of_others without a gradient that left the parameters unchanged
  kBelowFp16 = 83,      // share of gradient elements that fp16 rounded to nearly nothing (double)
  kLossScale = 84,      // loss scale of the last backward pass, if not 1 (double)
  kClippedShare = 85,   // this rank's share of the square of clipped_norm, if sharded (double)
  kInputMean = 86,      // mean of the first micro-batch's samples, steps 5 to 8 only (double)
  kInputSpread = 87,    // standard deviation of these samples (double)
  kAsStepped = 88,      // hash of the parameters as the optimizer left them, if written since
  kDataShare = 89,  // positions that the program's own dataset holds, perhaps a share of the data
  kRowsCut = 90,    // rows of the loader's batches that the model never received
  kRowsPassedOver = 91,  // like rows_cut, after a forward pass of the whole batch without gradients
  kBatchAgain = 92,      // the step seems to reuse the batch before: as many rows, no new batch
  kGradFactor = 93,      // factor on the reduced gradient, up to clipping (double); NaN: unknown
  kBackwardOrder = 94,   // 1 to 4: an order of passes with which DDP does not reduce
  kRowsChanged = 95,     // rows that the loader yielded differently (noise, augmentation, a cut)
};

enum class Expectation : std::uint8_t {
  kMustMatch,   // every rank holds the same value at a step
  kMustDiffer,  // no two ranks hold the same value
  kNoise,       // recorded; judged by a rule of its own, or not at all
};

struct FingerprintInfo {
  FingerprintKind kind;
  std::string_view name;  // for example "sampler_seed"
  Expectation expectation;
  bool real;  // the value holds the bits of a double
};

// All kinds known to presum, ascending.
std::span<const FingerprintInfo> fingerprint_kinds();
// Returns null for an unknown kind.
const FingerprintInfo* find_fingerprint_kind(std::uint32_t kind);

struct FingerprintValue {
  std::uint32_t kind = 0;
  std::uint64_t value = 0;
};

// Returns the value of a kind, or null if `values` lacks it.
inline const std::uint64_t* find_value(std::span<const FingerprintValue> values,
                                       std::uint32_t kind) {
  for (const FingerprintValue& f : values) {
    if (f.kind == kind) return &f.value;
  }
  return nullptr;
}

// A hash of some of a group's tensors before the step's forward pass.
struct StateHash {
  enum class Kind : std::uint32_t {
    kParameters = 1,
    kBuffers = 2,
    kOptimizer = 3,  // optimizer state of the group's parameters
    kWatched = 4,    // a value that the program declares equal on all ranks; the group is its name
    kFrozen = 5,     // parameters without a gradient
    kOutside = 6,    // a parameter that no watched reduction covers; the group is its name
  };
  std::uint64_t group = 0;
  Kind kind = Kind::kParameters;
  std::uint64_t value = 0;
  std::uint32_t shard = 0;  // shard of a sharded model, from 1; 0: the whole model

  // Kind and shard in one word, the form in packets and run logs.
  static constexpr std::uint32_t kShardBits = 8;
  static constexpr std::uint32_t kShardsMax = (1U << 24) - 1;
  std::uint32_t kind_and_shard() const {
    return static_cast<std::uint32_t>(kind) | shard << kShardBits;
  }
  static StateHash of(std::uint64_t group, std::uint32_t kind_and_shard, std::uint64_t value) {
    return {group, static_cast<Kind>(kind_and_shard & ((1U << kShardBits) - 1)), value,
            kind_and_shard >> kShardBits};
  }
};

// The rows of a batch in host memory.
struct RowBatch {
  const void* data = nullptr;  // rows x columns elements, row-major, contiguous
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  std::uint32_t element_bytes = 8;  // 1, 2, 4 or 8; narrower elements are zero-extended
  const void* mask = nullptr;       // null, or rows x columns; a zero excludes its position
  std::uint32_t mask_bytes = 8;     // size of a mask element: 1, 2, 4 or 8
};

// Writes a 64-bit hash of each row to `out` (REQUIRES: `out` has `rows` elements). The hash is the
// same on every machine and device. Padding is excluded: the positions where the mask is zero or,
// without a mask, a run of equal elements at the end of the row. In rows of more than 4,096
// elements, only evenly spaced elements are read. Thread-safe. Definition: docs/packet_format.md,
// "Row hash".
void hash_rows(const RowBatch& batch, std::span<std::uint64_t> out);

}  // namespace presum
