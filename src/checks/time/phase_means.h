// SPDX-License-Identifier: Apache-2.0
// Where workers' time goes, and what is each worker's beside the others.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_clock.h"
#include "checks/engine/step_context.h"

namespace presum::checks {

// Over about the last ten steps; of fewer, over all. 0 before the first.
class RunningMean {
 public:
  void add(double x) {
    constexpr double kRate = 0.1;
    ++count_;
    mean_ += (x - mean_) * std::max(kRate, 1 / static_cast<double>(count_));
  }
  double value() const { return mean_; }
  std::uint64_t count() const { return count_; }

 private:
  double mean_ = 0;
  std::uint64_t count_ = 0;
};

// Of one worker in one step, or their means, in seconds; each less the median of the others'.
struct BesideOthers {
  std::array<double, kPhaseCount> phases{};
  double own = 0;
  double waits = 0;         // of it less the others' mean: negative where it is waited for
  double others_own = 0;    // the median itself
  double on_processor = 0;  // not beside the others: the share of its own time
  double step = 0;          // likewise: the whole step, the mean over workers
  // Likewise of the thread that trains, over the whole step, and the median of the others'. NaN
  // where not known of all workers.
  base::ThreadTimes thread{kNaN, kNaN};
  base::ThreadTimes others_thread{kNaN, kNaN};
};

// Whether the times of all workers of a step are known, of two at least.
bool all_timed(const StepRecord& record);

class PhaseMeans {
 public:
  // REQUIRES: all_timed(record).
  void see(const StepRecord& record);

  // The worker's means since a step, over the last 64 at most. REQUIRES: it was seen.
  BesideOthers since(std::uint32_t replica, std::uint64_t step) const;
  // Likewise of BesideOthers::own: its median, and how far it scatters around that (a median
  // absolute deviation, as a standard deviation). A few steps far out change neither.
  struct Typical {
    double own = 0;
    double scatter = 0;
  };
  Typical typical(std::uint32_t replica, std::uint64_t step) const;
  bool knows(std::uint32_t replica) const { return workers_.find(replica) != nullptr; }
  double step_seconds() const { return total_.value(); }
  // What is waited for because workers are not equally fast: the mean over workers, beyond what
  // the one waits that waits least.
  double waiting() const { return waiting_.value(); }
  double data() const { return data_.value(); }  // of the worker that needs least
  std::uint64_t steps() const { return total_.count(); }

 private:
  struct Sample : BesideOthers {
    std::uint64_t number = 0;  // of the step
  };
  std::span<const Sample> samples(std::uint32_t replica, std::uint64_t step) const;

  PerWorker<std::vector<Sample>> workers_;  // ascending by number
  RunningMean total_;
  RunningMean waiting_;
  RunningMean data_;
};

}  // namespace presum::checks
