// SPDX-License-Identifier: Apache-2.0
// All statistics with one value per rank, those of each group included, and their combined
// evidence.
#pragma once

#include <bitset>
#include <cstdint>
#include <vector>

#include "detect/archive.h"
#include "detect/e_values.h"
#include "detect/rank_panel.h"
#include "detect/statistics.h"
#include "presum/step_record.h"

namespace presum::detect {

inline constexpr std::size_t kGroupWorkersMax = 256;  // with more ranks, groups are not watched

// The statistics that were updated at a step.
using StatisticSet = std::bitset<kStatisticCount>;

// Not synchronized. Watches at most 64 groups.
class WorkerPanels {
 public:
  // With `workers` = 0, no updates are allowed.
  explicit WorkerPanels(std::size_t workers = 0);

  StatisticSet update(const Statistics& values, std::uint64_t step);
  // Returns whether any group's panel was updated. Leaves out ranks whose whole norm is blamed, so
  // that one cause is not raised again for every group. REQUIRES: at most kGroupWorkersMax workers.
  bool update_groups(const StepRecord& record, std::uint64_t step);

  // REQUIRES: a statistic of ranks, not of groups or pairs.
  RankPanel& of(Statistic statistic);
  const RankPanel& of(Statistic statistic) const;
  bool blamed(Statistic statistic, std::size_t worker, std::uint64_t step) const {
    return of(statistic).memory().blamed(worker, step);
  }

  // The evidence against each rank, over all panels and both sides.
  std::vector<double> evidence() const;
  struct Strongest {
    RankPanel* panel = nullptr;
    Side side = Side::kHigh;
    std::uint64_t group = 0;
    double evidence = 0;
  };
  // The panel and side with the most evidence against the rank; no panel if there is no evidence.
  Strongest strongest(std::uint32_t worker);
  // Resets the rank's evidence everywhere.
  void reset_worker(std::uint32_t worker);
  // The group that deviates clearly more than this rank's groups usually do; 0 if none does.
  std::uint64_t deviating_group(std::uint32_t worker) const;

  // Calls see(panel, worker, side) for each alarm that was raised and still lasts.
  template <class See>
  void each_lasting(See&& see) const {
    for (const auto* set : {&panels_, &groups_}) {
      for (const RankPanel& panel : *set) {
        for (const auto& [worker, side] : panel.lasting()) see(panel, worker, side);
      }
    }
  }
  // The next step starts a new count of steps: blame and cool-downs end, evidence is kept.
  void restart(std::uint64_t step);

  void visit(Archive& archive);

 private:
  RankPanel& add_group(std::uint64_t id);
  RankPanel* group_panel(std::uint64_t id, std::size_t likely);

  std::size_t workers_;
  std::vector<RankPanel> panels_;
  std::vector<std::uint64_t> group_ids_;
  std::vector<RankPanel> groups_;  // parallel to group_ids_
  RankTables tables_;
  RankTables group_tables_;
  std::vector<double> group_values_;  // of the last group
};

}  // namespace presum::detect
