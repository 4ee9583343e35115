// SPDX-License-Identifier: Apache-2.0
// Workers whose own time is lastingly longer than the others' (docs/detectors.md, "Time").
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "detect/detector.h"
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
// workers. Not synchronised; no allocation grows with time. Never throws.
class SlowWorkers {
 public:
  explicit SlowWorkers(const Options& options);
  SlowWorkers(SlowWorkers&&) noexcept;
  SlowWorkers& operator=(SlowWorkers&&) noexcept;
  ~SlowWorkers();

  // As Detector::judge. Steps of which the time of fewer than two workers is known say nothing.
  TimeAlarms judge(const StepRecord& record);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace presum::detect
