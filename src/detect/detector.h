// SPDX-License-Identifier: Apache-2.0
// Turns the statistics of successive steps into alarms with a controlled false-alarm rate:
// docs/detectors.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "presum/step_record.h"

namespace presum::detect {

enum class Statistic : std::uint8_t {
  kLoss,        // a rank's loss
  kNorm,        // log of its gradient norm
  kDirection,   // its mean cosine with the other ranks
  kPeak,        // log of max |g| / |g|
  kResidual,    // |log norm minus its fitted line on the loss|
  kTokens,      // its token count
  kGroupNorm,   // log of its gradient norm in one group (layer)
  kPair,        // a pair's cosine
  kMicroBatch,  // how micro-batch losses are spread over ranks
  kOwnTime,     // log of its own time, without the time its thread waited for a processor
  kQueuedTime,  // log of its own time, including that wait
};
inline constexpr std::size_t kStatisticCount =
    9;  // those that Detector watches; SlowWorkers watches the times

struct Options {
  double level = 1e6;           // lower bound on the mean number of steps to a false alarm
  std::uint64_t cooldown = 50;  // steps after an alarm during which it is not raised again
};

struct Alarm {
  enum class Kind : std::uint8_t {
    kOutlier,          // a rank has been too high or too low for long
    kPairSimilar,      // two ranks are too similar
    kPairOpposed,      // two ranks are too dissimilar
    kTooConsistent,    // ranks differ less than their micro-batches allow
    kTooInconsistent,  // micro-batches of one rank are more alike than chance allows
    kEvent,            // one rank at one step is far outside everything seen
  };
  Kind kind = Kind::kOutlier;
  Statistic statistic = Statistic::kLoss;
  bool high = true;  // the rank is above the others
  // Ascending; empty: all. With two ranks, both are named, because it is unknown which one is
  // right; `high`, `effect` and `ratio` are those of the first.
  std::vector<std::uint32_t> replicas;
  std::uint64_t first_step = 0;  // where the evidence began to grow
  std::uint64_t step = 0;        // where the evidence sufficed
  double evidence = 0;           // log10 of the e-value; |z| for an event
  // Signed mean distance from the other ranks, in robust standard deviations.
  double effect = 0;
  // For norms and tokens: the rank's geometric mean relative to the others'.
  double ratio = kNaN;
  std::uint64_t group = 0;  // the group (layer) that shows it most; 0: none stands out
};

// A detector's result for a step.
struct StepAlarms {
  std::vector<Alarm> raised;
  // Alarms about single ranks that still hold: kind, statistic, side and ranks. Pairs and tests of
  // all ranks are not followed.
  std::vector<Alarm> lasting;
  // The number of steps that each statistic has seen, by Statistic; 0 if the run does not have it.
  std::array<std::uint64_t, kStatisticCount> watched{};
};

// Watches the steps of one model. Accepts any records: missing ranks, NaN, a changed world size
// (which starts over), skipped steps. W = 1 never alarms.
//
// Thread-safety: not synchronized. Memory does not grow with time. Never throws.
class Detector {
 public:
  explicit Detector(const Options& options);
  Detector(Detector&&) noexcept;
  Detector& operator=(Detector&&) noexcept;
  ~Detector();

  // REQUIRES: ascending steps. A step not above the last one starts a new count of steps (the run
  // restarted), in which no rank is blamed yet. Deterministic: the same records give the same
  // alarms.
  std::vector<Alarm> update(const StepRecord& record);
  // The same, with the alarms that last at this step and how much each statistic has seen.
  StepAlarms judge(const StepRecord& record);

  // The number of steps with at least two ranks that were examined, including those before
  // `restore`.
  std::uint64_t steps() const;
  // The number of ranks at the last step; 0 before the first.
  std::uint32_t workers() const;

  // The state as bytes, for a detector with the same options that continues (its `lasting` starts
  // empty). `restore` returns false and changes nothing if the bytes are not such a state.
  std::string save() const;
  bool restore(std::string_view state);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The number of steps after which a Detector with default options names a rank whose loss is the
// highest at every step, if nothing else is known. A shorter run cannot show a lasting difference
// in one statistic. 0 for fewer than two ranks; more than 1,024 count as 1,024.
std::uint64_t least_steps(std::size_t workers);

}  // namespace presum::detect
