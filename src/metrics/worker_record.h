// SPDX-License-Identifier: Apache-2.0
// Turns the packets of one step into records. Nothing here compares ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "packet/packet.h"
#include "presum/step_record.h"

namespace presum::metrics {

// The packets of one step, one per rank, sorted by replica. Borrowed.
using Steps = std::span<const packet::Step* const>;

// Fills all fields but `cosine_to_others`.
WorkerRecord worker_record(const packet::Step& step);

// One record per group of the first rank, in its order. The groups of other ranks are matched by
// id; a rank without the group has NaN, and 0 as the fingerprint.
std::vector<GroupRecord> group_records(Steps steps);

// Number of distinct gradients, without zero gradients and those that were not read.
std::uint32_t distinct_gradients(std::span<const WorkerRecord> workers);

}  // namespace presum::metrics
