// SPDX-License-Identifier: Apache-2.0
// Record types shared by packets, run logs and rules: the same type from a rank's packet to the
// report. Plain values; NaN means "unknown" or "undefined".
#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "presum/audit.h"
#include "presum/fingerprint.h"
#include "presum/times.h"

namespace presum {

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// One data-parallel model in one segment of a run log.
struct ModelKey {
  std::uint32_t segment = 0;      // of the run log, starting at 1
  std::uint32_t model_index = 0;  // number of the model in the run log
  std::uint32_t dp_group = 0;     // distinguishes data-parallel groups of one model
  auto operator<=>(const ModelKey&) const = default;  // NOLINT(modernize-use-nullptr)
};

// The result of one pass over gradient elements (docs/packet_format.md).
struct GradientSums {
  double sum_squares = 0;       // NaN if an element is NaN; otherwise +Inf if one is infinite
  double max_abs = 0;           // largest |g| over the finite elements; 0 if there are none
  std::uint64_t nonfinite = 0;  // number of NaN and Inf elements
  std::uint64_t fingerprint = 0;
  std::uint64_t zeros = 0;  // zeros in the first 64 of every 960 elements; not in packets
};

struct MicroBatch {
  double loss = kNaN;        // in the unit of the user's loss; may be NaN or Inf
  double weight = 1;         // weight in the rank's mean loss
  std::uint64_t tokens = 0;  // number of target tokens; 0 if unknown
  // The targets of the loss function: the tokens, or for a loss without tokens its elements; 0 if
  // unknown.
  std::uint64_t targets = 0;
  // What one target weighs in the loss that the rank differentiates, before the reduction: 1/n for
  // a mean over n targets, 1 for a sum. The mean over targets that weigh differently; NaN if
  // unknown.
  double token_weight = kNaN;
  bool differentiated = false;  // `loss` is the tensor that the rank differentiates
};

// The rows of a step's batches: the hashes of all rows or, if there are too many, those divisible
// by 2^thinned.
struct Samples {
  std::uint64_t rows = 0;  // 0 if unknown
  std::uint32_t thinned = 0;
  std::vector<std::uint64_t> hashes;
};

inline constexpr std::size_t kIndicesMax = 4096;

// Position of a step among the steps of its rank (docs/step.md). Ranks agree on it even if one of
// them skips optimizer steps, because each reduction, in which all ranks take part, restarts the
// count of windows.
struct StepNumber {
  static constexpr std::uint32_t kReduced = 0xFFFFFFFF;

  // Reductions before this step. A run log stores neither this count nor `window`, only whether
  // `window` is kReduced.
  std::uint64_t reductions = 0;
  // kReduced, or the number of windows that ended without a reduction between the last reduction
  // and this step.
  std::uint32_t window = kReduced;
  std::uint64_t unreduced = 0;  // steps of this rank before this one that had no reduction

  bool is_reduced() const { return window == kReduced; }
};

// What happened to a step's gradient before the next backward or forward pass.
enum class StepUse : std::uint8_t {
  kUnknown = 0,  // the optimizer is unknown
  kUsed = 1,     // an optimizer step used it
  kUnused = 2,   // it was zeroed
  kKept = 3,     // it is still in place: a later pass adds to it, or a later optimizer step uses it
};

// What a rank reports about a step besides its gradient.
struct StepReport {
  StepNumber number;
  StepUse use = StepUse::kUnknown;
  std::uint64_t optimizer_step = 0;      // optimizer steps finished so far
  std::uint32_t micro_batches = 0;       // backward passes in the step
  std::uint32_t skipped_parameters = 0;  // parameters left out: sparse or unreadable gradients
  std::uint64_t dropped = 0;             // packets that the rank has dropped so far
  std::vector<MicroBatch> micro;         // in the order of the losses
  std::vector<FingerprintValue> fingerprints;
  std::vector<StateHash> states;  // hashed before the forward pass
  Samples samples;
  // Positions of the samples in the dataset, if known; at most the first kIndicesMax.
  std::vector<std::uint64_t> indices;
  std::optional<AuditRecord> audit;  // audit of the step's reduction
  StepTimes times;

  // Returns the value of a fingerprint, or null.
  const std::uint64_t* fingerprint_of(FingerprintKind kind) const {
    return find_value(fingerprints, static_cast<std::uint32_t>(kind));
  }
};

// A group of parameters; by default one layer.
struct GroupName {
  std::uint64_t id = 0;        // hash of the group's name
  std::uint64_t elements = 0;  // total over its parameters
  std::string name;
};

// What a rank reports about itself before its first step.
struct WorkerFacts {
  std::string host;
  // For a repeated name, the last value counts.
  std::vector<std::pair<std::string, std::string>> facts;
  std::vector<GroupName> groups;  // in parameter order; groups without gradients last
};

// One group of a model at a snapshot: the part that a rank holds.
struct SnapshotGroup {
  std::uint64_t id = 0;
  std::uint64_t elements = 0;    // number of parameter elements
  double squares = 0;            // sum of squares of the parameters
  std::uint64_t parameters = 0;  // fingerprint of the parameters
  std::uint64_t optimizer = 0;   // fingerprint of their optimizer state; 0: unknown
  std::uint32_t shard = 0;       // as StateHash::shard
  std::uint16_t formats = 0;     // a bit 1 << Dtype for each dtype of the parameters; 0: unknown
  // Sketch of the parameters, always with the same seeds; empty: unknown.
  std::vector<float> sketch;
};

// The state of a training run at one point. A run that continues is compared with it.
struct TrainingSnapshot {
  enum class Kind : std::uint32_t {
    kUnknown = 0,
    kBegun = 1,  // before its first forward pass
    kSaved = 2,  // when the program took the optimizer's state
    kLeft = 3,   // at the end of the recording, in the state after the last optimizer step
  };
  Kind kind = Kind::kUnknown;
  std::uint64_t step = 0;         // the next step
  double optimizer_steps = kNaN;  // the optimizer's own count; NaN: it keeps none
  double learning_rate = kNaN;
  std::vector<FingerprintValue> generators;
  std::vector<SnapshotGroup> groups;  // empty if another rank reports the same
};

// A rank's parameters and buffers after its last step. Comparable between ranks if the numbers of
// optimizer steps are equal.
struct FinalState {
  std::uint64_t optimizer_steps = 0;           // optimizer steps finished
  std::vector<StateHash> states;               // for the whole model, as far as known
  std::vector<FingerprintValue> fingerprints;  // of events after the last step

  std::uint64_t fingerprint_or_zero(FingerprintKind kind) const {
    const std::uint64_t* value = find_value(fingerprints, static_cast<std::uint32_t>(kind));
    return value == nullptr ? 0 : *value;
  }
};

}  // namespace presum
