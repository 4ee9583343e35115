// SPDX-License-Identifier: Apache-2.0
// What workers are compared by besides their gradients: 64-bit values with a kind, hashes of
// parameters and buffers, and the samples that they drew (docs/packet_format.md).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace presum {

// Kinds below 1,024 belong to presum; their numbers never change.
enum class FingerprintKind : std::uint32_t {
  kRngTorch = 1,
  kRngDevice = 2,
  kRngNumpy = 3,
  kRngPython = 4,
  kForwardDraws = 5,  // the step's first forward drew: 1 from the host's, 2 the device's torch
  kSamplerClass = 10,
  kSamplerSeed = 11,
  kSamplerEpoch = 12,
  kSamplerRank = 13,
  kSamplerReplicas = 14,
  kSamplerLength = 15,
  kSamplerShuffle = 16,
  kSamplerDropLast = 17,
  kSamplerSetsEpoch = 18,  // 1: it has a set_epoch
  kDataClass = 20,
  kDataLength = 21,
  kDataAttributes = 22,
  kDataPass = 23,      // how often the loader was iterated before: 0 in the first epoch
  kDataBatch = 24,     // position of the step's last batch in the pass
  kDataSubset = 25,    // which positions of another data set it holds
  kDataContents = 26,  // rows of the tensors that it keeps, labels too
  kDataEnded = 27,     // the pass that a loader of the data set ended last, plus one
  kMode = 30,          // 1 training, 0 evaluation
  kModes = 31,         // which modules are in training mode
  kDropout = 32,       // largest active dropout rate; a real number
  kDropouts = 33,      // all dropout rates
  kNormBatches = 34,   // that the model's first BatchNorm has seen, before any broadcast
  kOptimizerClass = 40,
  kOptimizerSettings = 41,  // every hyper-parameter of every parameter group
  kLearningRate = 42,       // of the first group; a real number
  kWeightDecay = 43,        // likewise
  kDtype = 50,              // of the parameters and of autocast
  kForwardPrecision = 80,   // autocast and the parameters' dtype, inside one layer's forward pass
  kDeterminism = 51,        // determinism flags
  kWrapperForward = 61,     // 1: the forward pass went through the data-parallel wrapper
  kGradientWeight = 62,     // its gradient over that of its mean loss per token; a real number
  kZeroShare = 63,          // of the elements of its gradient, those of exactly zero; a real number
  kClipNorm = 64,           // by which all gradients were clipped; a real number
  kClippedNorm = 65,        // of these gradients, just before; a real number
  kGradNormTold = 66,       // of the reduced gradient, as the program says; a real number
  kGradNormThen = 67,       // of the gradients when it says so; a real number
  kPassesCleared = 68,      // whose gradients were cleared before the step that used the others
  kForwardsDetached = 69,   // training forwards that no backward pass went through, likewise
  kBatch = 70,              // all samples of the step, in any order
  kUnreadInputs = 71,       // tensors that the step's forward passes took and that were not read
  kLabels = 72,             // what loaders handed out beside the samples
  kGradChanged = 73,  // times what it was: `.grad` between two passes of the step; a real number
  kClipLimit = 76,    // to which norm all gradients were clipped; a real number
  kUnchangedShare =
      74,            // of parameters in 16 bits that the optimizer left as before; a real number
  kRecomputed = 75,  // what computing a micro-batch once more has shown; 0: the same gradient
  kComparedDifferent =
      77,              // tensors that the program compared with its parameters, and that differ
  kLeftOver = 78,      // 1: its first pass added to what was there when the optimizer had stepped
  kClipNormType = 79,  // of kClipNorm and kClippedNorm where it is not 2; NaN: of the first unknown
  kStepsOfOthers = 81,  // by optimizers that presum was not given, which ought to move parameters
  kStepsInVain = 82,    // of these, by optimizers without a gradient, while parameters stood still
  kBelowFp16 = 83,  // share of its gradient of which fp16 has left next to nothing; a real number
  kLossScale = 84,  // by which the loss of its last pass was multiplied, if not 1; a real number
  kClippedShare =
      85,           // of the square of kClippedNorm, this rank's: gradients in parts; a real number
  kInputMean = 86,  // of the samples of its first micro-batch, steps 5 to 8 only; a real number
  kInputSpread = 87,  // their standard deviation; a real number
  kAsStepped = 88,    // its parameters as the optimizer had left them, if they were written since
  kDataShare = 89,    // positions that a data set of the program's own holds: perhaps a share
  kRowsCut = 90,      // of its loader's batches, which its model was not given
  kRowsPassedOver = 91,  // likewise, but it was given all of the batch without gradients before
  kBatchAgain = 92,      // made of the batch before, it seems: as many rows, no new batch
};

enum class Expectation : std::uint8_t {
  kMustMatch,   // every worker holds the same value at a step
  kMustDiffer,  // no two workers hold the same value
  kNoise,       // recorded, and judged by a rule of its own or not at all
};

struct FingerprintInfo {
  FingerprintKind kind;
  std::string_view name;  // such as "sampler_seed"
  Expectation expectation;
  bool real;  // the value is the bits of a double
};

// All kinds that presum knows, ascending.
std::span<const FingerprintInfo> fingerprint_kinds();
// Null for a kind that presum does not know.
const FingerprintInfo* find_fingerprint_kind(std::uint32_t kind);

struct FingerprintValue {
  std::uint32_t kind = 0;
  std::uint64_t value = 0;
};

// The value of a kind among them, or null.
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
    kOptimizer = 3,  // what the optimizer keeps of the group's parameters
    kWatched = 4,    // what the program says must be equal; the group is its name
    kFrozen = 5,     // parameters without a gradient
    kOutside = 6,    // a parameter that no watched reduction takes; the group is its name
  };
  std::uint64_t group = 0;
  Kind kind = Kind::kParameters;
  std::uint64_t value = 0;
  std::uint32_t shard = 0;  // which part of a sharded model it is of, from 1; 0: the whole

  // Kind and shard in one word, as packets and run logs have them.
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

// Rows of a batch in host memory.
struct RowBatch {
  const void* data = nullptr;  // rows x columns elements, row by row, without gaps
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  std::uint32_t element_bytes = 8;  // 1, 2, 4 or 8; narrower ones are zero-extended
  const void* mask = nullptr;       // null, or rows x columns: zero leaves a position out
  std::uint32_t mask_bytes = 8;     // bytes of a mask element: 1, 2, 4 or 8
};

// A 64-bit hash of each row, written to `out` (REQUIRES: rows long), equal on every machine and
// device. Padding is left out: positions where the mask is zero or, without a mask, a run of equal
// elements at the row's end. Rows of more than 4,096 elements are read at evenly spaced places.
// Thread-safe. Definition: docs/packet_format.md, "Row hash".
void hash_rows(const RowBatch& batch, std::span<std::uint64_t> out);

}  // namespace presum
