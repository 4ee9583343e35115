// SPDX-License-Identifier: Apache-2.0
// Finds ranks whose own time is persistently longer than the others' (docs/detectors.md, "Time").
#pragma once

#include <cstdint>
#include <vector>

#include "detect/detector.h"
#include "detect/rank_panel.h"
#include "presum/step_record.h"

namespace presum::detect {

// The result for the times of a step: alarms of kOutlier about one rank each, for kOwnTime or
// kQueuedTime, always high. `ratio` is the rank's own time divided by the others'.
struct TimeAlarms {
  std::vector<Alarm> raised;
  std::vector<Alarm> lasting;  // as StepAlarms::lasting
  std::uint64_t watched = 0;   // number of steps
};

// D1 on own times, with a separate guarantee: at most T / level alarms in T steps of exchangeable
// ranks. Not synchronized; memory does not grow with time. Never throws.
class SlowWorkers {
 public:
  explicit SlowWorkers(const Options& options);

  // As Detector::judge. Steps with known times of fewer than two ranks are ignored.
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
  std::vector<double> own_;     // log, without the time the thread was queued; by replica
  std::vector<double> queued_;  // log, including that time
};

}  // namespace presum::detect
