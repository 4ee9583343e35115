// SPDX-License-Identifier: Apache-2.0
// Records that packets, run logs and rules share: one type for one thing, from a worker's packet to
// the page. Plain values; NaN means "not known" or "undefined".
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

// One data-parallel model of one segment of a run log.
struct ModelKey {
  std::uint32_t segment = 0;      // of the run log, from 1
  std::uint32_t model_index = 0;  // number of the model in the run log
  std::uint32_t dp_group = 0;     // tells data-parallel groups of one model apart
  auto operator<=>(const ModelKey&) const = default;  // NOLINT(modernize-use-nullptr)
};

// What one pass over some gradient elements yields (docs/packet_format.md).
struct GradientSums {
  double sum_squares = 0;       // NaN if any element is NaN, else +Inf if any is infinite
  double max_abs = 0;           // largest |g| over finite elements; 0 if there are none
  std::uint64_t nonfinite = 0;  // NaN and Inf elements
  std::uint64_t fingerprint = 0;
  std::uint64_t zeros = 0;  // among the first 64 of every 960 elements; not in packets
};

struct MicroBatch {
  double loss = kNaN;        // in the unit of the user's loss; NaN and Inf are kept
  double weight = 1;         // in the worker's mean
  std::uint64_t tokens = 0;  // target tokens; 0 if unknown
};

// The rows of a step's batches: hashes of all of them or, where those would be too many, of those
// that 2^thinned divides.
struct Samples {
  std::uint64_t rows = 0;  // 0 if unknown
  std::uint32_t thinned = 0;
  std::vector<std::uint64_t> hashes;
};

inline constexpr std::size_t kIndicesMax = 4096;

// Which of its worker's steps a step is (docs/step.md). Workers agree on it even where one of them
// leaves out optimizer steps: a reduction, in which all take part, begins a new count of windows.
struct StepNumber {
  static constexpr std::uint32_t kReduced = 0xFFFFFFFF;

  // Before it; a run log does not keep this one, nor the next beyond whether it is kReduced.
  std::uint64_t reductions = 0;
  // kReduced, or how many windows have ended unreduced since the last reduction, before this one
  std::uint32_t window = kReduced;
  std::uint64_t unreduced = 0;  // steps of its worker before it that were not reduced

  bool is_reduced() const { return window == kReduced; }
};

// What became of a step's gradient before the next backward pass or forward pass.
enum class StepUse : std::uint8_t {
  kUnknown = 0,  // the optimizer is not known
  kUsed = 1,     // an optimizer step took it
  kUnused = 2,   // it was zeroed
  kKept = 3,     // it is still there: a further pass adds to it, or a later optimizer step takes it
};

// What a worker reports of its step besides its gradient.
struct StepReport {
  StepNumber number;
  StepUse use = StepUse::kUnknown;
  std::uint64_t optimizer_step = 0;      // optimizer steps it had finished
  std::uint32_t micro_batches = 0;       // backward passes that went into the step
  std::uint32_t skipped_parameters = 0;  // sparse or unreadable gradients left out
  std::uint64_t dropped = 0;             // packets it could not send so far
  std::vector<MicroBatch> micro;         // in the order of their losses
  std::vector<FingerprintValue> fingerprints;
  std::vector<StateHash> states;  // before the forward pass
  Samples samples;
  // Of the samples in the data set, where they are known: the first kIndicesMax.
  std::vector<std::uint64_t> indices;
  std::optional<AuditRecord> audit;  // of the step's reduction
  StepTimes times;

  // The value of a fingerprint, or null.
  const std::uint64_t* fingerprint_of(FingerprintKind kind) const {
    return find_value(fingerprints, static_cast<std::uint32_t>(kind));
  }
};

// A group of parameters: by default a layer.
struct GroupName {
  std::uint64_t id = 0;        // name hash of the group's name
  std::uint64_t elements = 0;  // of all its parameters
  std::string name;
};

// What a worker says about itself before its first step.
struct WorkerFacts {
  std::string host;
  std::vector<std::pair<std::string, std::string>> facts;  // later values replace earlier ones
  std::vector<GroupName> groups;  // in the order of the parameters; those without gradients last
};

// One group of a model at a snapshot, as far as a worker holds it.
struct SnapshotGroup {
  std::uint64_t id = 0;
  std::uint64_t elements = 0;    // of its parameters
  double squares = 0;            // the sum of theirs
  std::uint64_t parameters = 0;  // their fingerprint
  std::uint64_t optimizer = 0;   // that of what the optimizer keeps of them; 0: nothing is known
  std::uint32_t shard = 0;       // as StateHash::shard
  std::uint16_t formats = 0;     // bits 1 << Dtype of the parameters; 0: not known
  std::vector<float> sketch;     // of the parameters, with the same seeds always; empty: not known
};

// Where a training stood: what a run that continues is held against.
struct TrainingSnapshot {
  enum class Kind : std::uint32_t {
    kUnknown = 0,
    kBegun = 1,  // before its first forward pass
    kSaved = 2,  // when the program took its optimizer's state
    kLeft = 3,   // when its recording ended, as its last optimizer step had left it
  };
  Kind kind = Kind::kUnknown;
  std::uint64_t step = 0;         // the one to come
  double optimizer_steps = kNaN;  // as the optimizer itself counts them; NaN: it does not
  double learning_rate = kNaN;
  std::vector<FingerprintValue> generators;
  std::vector<SnapshotGroup> groups;  // none where another worker tells the same
};

// A worker's parameters and buffers after its last step. States of equal counts can be compared.
struct FinalState {
  std::uint64_t optimizer_steps = 0;           // that it had finished
  std::vector<StateHash> states;               // of the whole model, as far as it is known
  std::vector<FingerprintValue> fingerprints;  // of what ended after the last step

  std::uint64_t fingerprint_or_zero(FingerprintKind kind) const {
    const std::uint64_t* value = find_value(fingerprints, static_cast<std::uint32_t>(kind));
    return value == nullptr ? 0 : *value;
  }
};

}  // namespace presum
