// SPDX-License-Identifier: Apache-2.0
// What needs the run's own past, or none: single steps far outside everything seen, and workers
// that all hold the same gradient (docs/detectors.md, D4 and "The same work"). No error control.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "detect/detector.h"
#include "detect/rank_panel.h"
#include "detect/reading.h"
#include "detect/worker_panels.h"
#include "presum/step_record.h"

namespace presum::detect {

// Workers that are far out at one step, of one panel.
class OutlyingSteps {
 public:
  struct Event {
    std::uint32_t worker = 0;
    Reading reading;
  };
  // Of the panel's last step. Workers that are blamed already are left out; silent for the first
  // 100 steps.
  std::vector<Event> update(const RankPanel& panel, std::uint64_t step);

  auto kept() { return std::tie(peak_); }

 private:
  double peak_ = 0;  // largest distance so far, slowly forgotten
};

// Ten steps in a row in which all workers hold one gradient up to rounding.
class SameWork {
 public:
  // The step where it began, once it has lasted; then it starts to count anew.
  std::optional<std::uint64_t> update(const StepRecord& record);

  auto kept() { return std::tie(streak_, first_); }

 private:
  std::uint64_t streak_ = 0;
  std::uint64_t first_ = 0;
};

// Both, as alarms with cool-downs. Not synchronised.
class History {
 public:
  explicit History(std::size_t workers = 0);

  // Appends what the panels' last step and the record show.
  void update(const StepRecord& record, const WorkerPanels& panels, std::uint64_t cooldown,
              std::vector<Alarm>& alarms);
  // The next step begins a new count of steps: cool-downs end, what was seen is kept.
  void restart();

  auto kept() { return std::tie(outlying_, same_work_, event_raised_at_, same_raised_at_); }

 private:
  void raise_events(const RankPanel& panel, OutlyingSteps& outlying, std::uint64_t step,
                    std::uint64_t cooldown, std::vector<Alarm>& alarms);

  std::size_t workers_;
  std::array<OutlyingSteps, 2> outlying_;  // of loss and norm
  SameWork same_work_;
  std::vector<std::uint64_t> event_raised_at_;  // loss then norm, by worker; step + 1, 0: never
  std::vector<std::uint64_t> same_raised_at_;   // likewise, one
};

}  // namespace presum::detect
