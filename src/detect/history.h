// SPDX-License-Identifier: Apache-2.0
// Finds single steps far outside everything seen (docs/detectors.md, D4). No error control.
#pragma once

#include <array>
#include <cstdint>
#include <tuple>
#include <vector>

#include "detect/detector.h"
#include "detect/rank_panel.h"
#include "detect/worker_panels.h"

namespace presum::detect {

// Not synchronized.
class History {
 public:
  explicit History(std::size_t workers = 0) : workers_(workers), event_raised_at_(2 * workers) {}

  // Appends events in the panels' last step.
  void update(std::uint64_t step, const WorkerPanels& panels, std::uint64_t cooldown,
              std::vector<Alarm>& alarms);
  // The next step starts a new count of steps: cool-downs end, peaks are kept.
  void restart();

  auto kept() { return std::tie(peaks_, event_raised_at_); }

 private:
  // Appends the ranks that are far out at one step. Leaves out ranks already blamed; raises nothing
  // in the first 100 steps.
  void raise_events(const RankPanel& panel, std::uint64_t step, std::uint64_t cooldown,
                    std::vector<Alarm>& alarms);

  std::size_t workers_;
  // For loss and norm: the largest distance, slowly decaying.
  std::array<double, 2> peaks_ = {};
  std::vector<std::uint64_t> event_raised_at_;  // loss then norm, by rank; step + 1, 0: never
};

}  // namespace presum::detect
