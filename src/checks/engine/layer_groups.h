// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "checks/engine/roster.h"
#include "presum/step_record.h"

namespace presum::checks {

// Layers that groups of ranks hold separately from the start and reduce among themselves, beside
// layers that all ranks reduce: experts, shards of an embedding. Only the first record can show
// that; later, layers that are reduced separately by mistake differ in the same way. Not
// synchronized.
class LayerGroups {
 public:
  // REQUIRES: ascending steps.
  void see(const StepRecord& record);
  bool empty() const { return group_of_.empty(); }
  std::size_t layers() const { return group_of_.size(); }
  std::string names(const Roster& roster, std::size_t at_most) const;
  // The ranks of each group, from the first such layer.
  std::vector<std::vector<std::uint32_t>> groups() const;

  // The record with these layers sharded among their groups, so that only ranks of one group are
  // compared. Drops their reductions and those of the whole gradient, whose expected values are
  // unknown.
  StepRecord apart(StepRecord record) const;
  FinalState apart(std::uint32_t rank, FinalState last) const;

 private:
  using GroupOfRank = std::map<std::uint32_t, std::uint32_t>;  // group number from 1, by rank

  void shard(std::uint32_t rank, std::vector<StateHash>& states) const;

  bool looked_ = false;
  std::map<std::uint64_t, GroupOfRank> group_of_;  // by layer
};

}  // namespace presum::checks
