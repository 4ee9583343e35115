// SPDX-License-Identifier: Apache-2.0
// Running means of where workers' time goes, and what is each worker's beside the others.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "diagnose/step_context.h"

namespace presum::diagnose {

// Over about the last 20 steps; of fewer, over all. Seconds a step; 0 before the first.
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

// Of one worker, each less the median of the others'.
struct WorkerTimes {
  std::array<RunningMean, kPhaseCount> phases;
  RunningMean own;
  RunningMean queued;
  RunningMean waits;          // of it less the others' mean: negative where it is waited for
  RunningMean others_own;     // the median itself
  RunningMean own_processor;  // not beside the others: the share of own time on a processor
};

// Whether the times of all workers of a step are known, of two at least.
bool all_timed(const StepRecord& record);
// The median of the values but for that at `at`. REQUIRES: two values at least.
double median_of_others(std::span<const double> values, std::size_t at);

class PhaseMeans {
 public:
  // REQUIRES: all_timed(record).
  void see(const StepRecord& record);

  const WorkerTimes* of(std::uint32_t replica) const { return workers_.find(replica); }
  double step_seconds() const { return total_.value(); }
  // What is waited for because workers are not equally fast: the mean over workers, beyond what
  // the one waits that waits least.
  double waiting() const { return waiting_.value(); }
  double data() const { return data_.value(); }  // the mean over workers
  std::uint64_t steps() const { return total_.count(); }

 private:
  PerWorker<WorkerTimes> workers_;
  RunningMean total_;
  RunningMean waiting_;
  RunningMean data_;
};

}  // namespace presum::diagnose
