// SPDX-License-Identifier: Apache-2.0
// Hashes of a model's state, compared between the ranks of a step.
#pragma once

#include <cstdint>
#include <set>

#include "checks/engine/split.h"
#include "presum/step_record.h"

namespace presum::checks {

using Groups = std::set<std::uint64_t>;

// REQUIRES: at least one rank.
bool all_equal(const StepRecord& record);
// The shards that have hashes.
std::set<std::uint32_t> shards_of(const StepRecord& record, StateHash::Kind kind);
// Groups for which two ranks hold different values; ranks without a group do not count.
Groups differing(const StepRecord& record, StateHash::Kind kind, std::uint32_t shard);
// Ranks by all their values in these groups, in any order. Skips ranks that lack one.
Split split_states(const StepRecord& record, StateHash::Kind kind, std::uint32_t shard,
                   const Groups& groups);

}  // namespace presum::checks
