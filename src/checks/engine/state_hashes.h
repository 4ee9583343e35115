// SPDX-License-Identifier: Apache-2.0
// Hashes of a model's state, between the workers of a step.
#pragma once

#include <cstdint>
#include <set>

#include "checks/engine/split.h"
#include "presum/step_record.h"

namespace presum::checks {

using Groups = std::set<std::uint64_t>;

// REQUIRES: at least one worker.
bool all_equal(const StepRecord& record);
// The shards that there are hashes of.
std::set<std::uint32_t> shards_of(const StepRecord& record, StateHash::Kind kind);
// Groups of which two workers hold different values; workers without a group do not count.
Groups differing(const StepRecord& record, StateHash::Kind kind, std::uint32_t shard);
// Workers by all their values in these groups, in any order. Those that lack one are left out.
Split split_states(const StepRecord& record, StateHash::Kind kind, std::uint32_t shard,
                   const Groups& groups);

}  // namespace presum::checks
