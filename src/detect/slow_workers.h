// SPDX-License-Identifier: Apache-2.0
// Workers whose own time is lastingly longer than the others' (docs/detectors.md, "Time").
#pragma once

#include <cstdint>
#include <vector>

#include "detect/detector.h"
#include "detect/rank_panel.h"
#include "presum/step_record.h"

namespace presum::detect {

// What is said of the times of a step: alarms of kOutlier about one worker each, of kOwnTime or
// kQueuedTime, high. Their `ratio` is its own time over the others'.
struct TimeAlarms {
  std::vector<Alarm> raised;
  std::vector<Alarm> lasting;  // as StepAlarms::lasting
  std::uint64_t watched = 0;   // steps
};

// D1 on own times, with its own promise: at most T / level alarms in T steps of exchangeable
// workers. Not synchronized; no allocation grows with time. Never throws.
class SlowWorkers {
 public:
  explicit SlowWorkers(const Options& options);

  // As Detector::judge. Steps of which the time of fewer than two workers is known say nothing.
  TimeAlarms judge(const StepRecord& record);

 private:
  void start(std::uint32_t expected);
  void fill(const StepRecord& record);
  void raise(RankPanel& panel, std::uint32_t worker, std::uint64_t step, TimeAlarms& out);

  Options options_;
  RankTables tables_;
  std::uint32_t workers_ = 0;
  std::uint64_t steps_ = 0;
  std::uint64_t last_step_ = 0;
  std::vector<RankPanel> panels_;
  std::vector<double> own_;     // log, without what the thread was queued; by replica
  std::vector<double> queued_;  // log, with it
};

}  // namespace presum::detect
