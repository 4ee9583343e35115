// SPDX-License-Identifier: Apache-2.0
// Turns sufficient evidence into alarms.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "detect/detector.h"
#include "detect/pair_panel.h"
#include "detect/partition.h"
#include "detect/worker_panels.h"

namespace presum::detect {

// The alarm about one rank of a panel, without its evidence. With two ranks, both are named.
Alarm alarm_about(const RankPanel& panel, Side side, std::uint32_t worker);

// Raises the alarms of one step. Borrows all its arguments and appends to `alarms`. Evidence that
// does not matter, or that was raised recently, is reset without an alarm.
class AlarmRaiser {
 public:
  AlarmRaiser(const Options& options, std::uint64_t step, WorkerPanels& panels,
              std::vector<Alarm>& alarms);

  void raise_workers();
  void raise_pairs(PairPanel& pairs);
  void raise_partition(Partition& partition);

 private:
  void raise_worker(std::uint32_t worker);
  void raise_or_reset(const WorkerPanels::Strongest& strongest, std::uint32_t worker);
  Alarm outlier(const WorkerPanels::Strongest& strongest, std::uint32_t worker,
                const Window& window) const;
  bool explained_by_outlier(double evidence);
  Alarm partition_alarm(Partition::Test test, const Window& window, double evidence) const;
  std::optional<std::uint32_t> suspect(const RankPanel& panel, Side side) const;

  const Options& options_;
  std::uint64_t step_;
  WorkerPanels& panels_;
  std::vector<Alarm>& alarms_;
  std::vector<double> evidence_;  // against each rank; 0 once it was named
};

}  // namespace presum::detect
