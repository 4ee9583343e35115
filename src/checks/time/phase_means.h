// SPDX-License-Identifier: Apache-2.0
// Where ranks spend their time, and how each rank differs from the others.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_clock.h"
#include "checks/engine/step_context.h"

namespace presum::checks {

// Mean over about the last ten steps; with fewer steps, over all. 0 before the first.
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

// Times of one rank in one step, or their means, in seconds; each minus the median of the others'.
struct BesideOthers {
  std::array<double, kPhaseCount> phases{};
  double own = 0;
  double waits = 0;         // minus the others' mean: negative if they wait for this rank
  double others_own = 0;    // the median that was subtracted
  double on_processor = 0;  // a plain share of its own time, not a difference
  double step = 0;          // a plain time: the whole step, the mean over ranks
  // Plain times of the training thread over the whole step, and the median of the others'. NaN if
  // unknown on some rank.
  base::ThreadTimes thread{kNaN, kNaN};
  base::ThreadTimes others_thread{kNaN, kNaN};
};

// Whether the times of all ranks of a step are known, for at least two ranks.
bool all_timed(const StepRecord& record);

class PhaseMeans {
 public:
  // REQUIRES: all_timed(record).
  void see(const StepRecord& record);

  // The rank's means since a step, over the last 64 steps at most. REQUIRES: it was seen.
  BesideOthers since(std::uint32_t replica, std::uint64_t step) const;
  // The median of BesideOthers::own, and the scatter around it (a median absolute deviation, scaled
  // to a standard deviation). A few steps far out change neither.
  struct Typical {
    double own = 0;
    double scatter = 0;
  };
  Typical typical(std::uint32_t replica, std::uint64_t step) const;
  bool knows(std::uint32_t replica) const { return workers_.find(replica) != nullptr; }
  double step_seconds() const { return total_.value(); }
  // Waiting time because ranks are not equally fast: the mean over ranks, minus that of the rank
  // that waits least.
  double waiting() const { return waiting_.value(); }
  double data() const { return data_.value(); }  // of the rank that needs least
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
