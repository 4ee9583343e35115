// SPDX-License-Identifier: Apache-2.0
// The three metrics over time become alarms with a controlled false-alarm rate: docs/detectors.md.
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
  kLoss,        // a worker's loss
  kNorm,        // log of its gradient norm
  kDirection,   // its mean cosine with the others
  kPeak,        // log of max |g| / |g|
  kResidual,    // |log norm - its line on the loss|
  kTokens,      // its token count
  kGroupNorm,   // log of its gradient norm in one group (layer)
  kPair,        // a pair's cosine
  kMicroBatch,  // how micro-batch losses are spread over workers
  kOwnTime,     // log of its own time, without what its thread waited for a processor
  kQueuedTime,  // the same with it
};
inline constexpr std::size_t kStatisticCount =
    9;  // those that Detector watches; times are SlowWorkers'

struct Options {
  double level = 1e6;           // mean steps to a false alarm are at least so many
  std::uint64_t cooldown = 50;  // steps after an alarm in which the same one is not raised again
};

struct Alarm {
  enum class Kind : std::uint8_t {
    kOutlier,          // a worker is too high or too low for long
    kPairSimilar,      // two workers are too alike
    kPairOpposed,      // two workers are too unlike
    kTooConsistent,    // workers differ less than their micro-batches allow
    kTooInconsistent,  // micro-batches of one worker are more alike than chance allows
    kEvent,            // one worker, one step, far outside everything seen
  };
  Kind kind = Kind::kOutlier;
  Statistic statistic = Statistic::kLoss;
  bool high = true;  // the worker is above the others
  // Ascending; empty: all. Of two workers that differ both are named, and `high`, `effect` and
  // `ratio` are those of the first: nobody knows which one is right.
  std::vector<std::uint32_t> replicas;
  std::uint64_t first_step = 0;  // where the evidence began to grow
  std::uint64_t step = 0;        // where it was enough
  double evidence = 0;           // log10 of the e-value; of an event |z|
  double effect = 0;    // mean distance from the others in their robust standard deviations, signed
  double ratio = kNaN;  // of norms and tokens: the worker's geometric mean against the others'
  std::uint64_t group = 0;  // the group (layer) that shows it most; 0: none stands out
};

// What a detector says of a step.
struct StepAlarms {
  std::vector<Alarm> raised;
  // What was said about single workers and is still so: kind, statistic, side and workers. Pairs
  // and tests of all workers are not followed.
  std::vector<Alarm> lasting;
  // Steps that every statistic has seen, by Statistic; 0 where the run does not have it.
  std::array<std::uint64_t, kStatisticCount> watched{};
};

// Watches the steps of one model. Takes any records: missing workers, NaN, changing world size
// (which starts anew), steps left out. W = 1 never alarms.
//
// Thread-safety: not synchronized. No allocation grows with time. Never throws.
class Detector {
 public:
  explicit Detector(const Options& options);
  Detector(Detector&&) noexcept;
  Detector& operator=(Detector&&) noexcept;
  ~Detector();

  // REQUIRES: ascending steps; a lower one begins a new count of steps (a restart of the run), in
  // which nobody is blamed yet. Deterministic: the same records give the same alarms.
  std::vector<Alarm> update(const StepRecord& record);
  // The same with what lasts at this step, and how much was seen.
  StepAlarms judge(const StepRecord& record);

  // How many steps of two workers or more it has looked at, those before `restore` too.
  std::uint64_t steps() const;
  // Of its last step; 0 before the first.
  std::uint32_t workers() const;

  // The state as bytes, for a detector of the same options that continues (`lasting` is empty
  // then). `restore` returns false, and changes nothing, where the bytes are not such a state.
  std::string save() const;
  bool restore(std::string_view state);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The steps after which a Detector with its default options names a worker whose loss is the
// highest at every one of them, and nothing else is known: no run that is shorter can show a
// lasting difference in one statistic. 0 for fewer than two workers; of more than 1,024 as of
// 1,024.
std::uint64_t least_steps(std::size_t workers);

}  // namespace presum::detect
