// SPDX-License-Identifier: Apache-2.0
// What needs the run's own past, or none: single steps far outside everything seen, and workers
// that all hold the same gradient (docs/detectors.md, D4 and "The same work"). No error control.
#pragma once

#include <array>
#include <cstdint>
#include <tuple>
#include <vector>

#include "detect/detector.h"
#include "detect/rank_panel.h"
#include "detect/worker_panels.h"
#include "presum/step_record.h"

namespace presum::detect {

// Not synchronized.
class History {
 public:
  explicit History(std::size_t workers = 0)
      : workers_(workers), event_raised_at_(2 * workers), same_raised_at_(1) {}

  // Appends what the panels' last step and the record show.
  void update(const StepRecord& record, const WorkerPanels& panels, std::uint64_t cooldown,
              std::vector<Alarm>& alarms);
  // The next step begins a new count of steps: cool-downs end, what was seen is kept.
  void restart();

  auto kept() {
    return std::tie(peaks_, same_steps_, same_since_, event_raised_at_, same_raised_at_);
  }

 private:
  // Workers that are far out at one step. Those that are blamed already are left out; silent for
  // the first 100 steps.
  void raise_events(const RankPanel& panel, std::uint64_t step, std::uint64_t cooldown,
                    std::vector<Alarm>& alarms);
  // Ten steps in a row in which all workers hold one gradient up to rounding.
  void raise_same_work(const StepRecord& record, std::uint64_t cooldown,
                       std::vector<Alarm>& alarms);

  std::size_t workers_;
  std::array<double, 2> peaks_ = {};  // of loss and norm: largest distance, slowly forgotten
  std::uint64_t same_steps_ = 0;      // in a row
  std::uint64_t same_since_ = 0;
  std::vector<std::uint64_t> event_raised_at_;  // loss then norm, by worker; step + 1, 0: never
  std::vector<std::uint64_t> same_raised_at_;   // likewise, one
};

}  // namespace presum::detect
