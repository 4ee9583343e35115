// SPDX-License-Identifier: Apache-2.0
// periodic-stall, gradual-slowing.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "diagnose/phase_means.h"
#include "diagnose/step_context.h"

namespace presum::diagnose {

// Steps that take far longer than usual, at equal distances.
class PeriodicStalls {
 public:
  // REQUIRES: all_timed(record).
  void update(const StepRecord& record, SignalLog& log);

 private:
  struct Stall {
    std::uint64_t step = 0;
    std::uint64_t record = 0;                  // which of those that were seen
    double longer = 0;                         // seconds
    Ranks ranks;                               // those whose own time it was
    std::array<double, kPhaseCount> phases{};  // each longer than it usually is
    double queued = 0;                         // likewise
  };
  void note(const StepRecord& record, double usual);
  std::optional<std::uint64_t> period() const;
  void report(const StepRecord& record, std::uint64_t period, SignalLog& log) const;

  std::deque<double> longest_;  // own time of a step, the last of them
  std::array<RunningMean, kPhaseCount> phases_;
  RunningMean queued_;
  RunningMean total_;
  std::uint64_t records_ = 0;
  std::uint64_t in_a_row_ = 0;  // that took longer than usual
  std::deque<Stall> stalls_;
};

// The whole job becomes slower and slower.
class GradualSlowing {
 public:
  // REQUIRES: all_timed(record).
  void update(const StepRecord& record, SignalLog& log);

 private:
  struct Block {
    std::uint64_t first_step = 0;
    double seconds = 0;  // the median over steps of the fastest worker's passes and update
    double tokens = 0;   // likewise of the mean count; 0 where not known
  };
  void end_block();
  bool slows() const;

  std::vector<double> seconds_;  // of the block under way
  std::vector<double> tokens_;
  std::uint64_t first_step_ = 0;
  std::deque<Block> blocks_;
};

class Pace {
 public:
  void update(const StepContext& context, SignalLog& log);

 private:
  PeriodicStalls stalls_;
  GradualSlowing slowing_;
  std::uint64_t timed_ = 0;
};

}  // namespace presum::diagnose
