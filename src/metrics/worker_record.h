// SPDX-License-Identifier: Apache-2.0
// What the packets of one step say, as records: nothing here compares workers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "packet/packet.h"
#include "presum/step_record.h"

namespace presum::metrics {

// The packets of one step, one per worker, by replica. Borrowed.
using Steps = std::span<const packet::Step* const>;

// All but `cosine_to_others`.
WorkerRecord worker_record(const packet::Step& step);

// One record per group of the first worker, in its order. Others are matched by id; NaN, and 0 as
// the fingerprint, where a worker lacks the group.
std::vector<GroupRecord> group_records(Steps steps);

// How many different gradients there are. Zero ones, and those that were not read, do not count.
std::uint32_t distinct_gradients(std::span<const WorkerRecord> workers);

}  // namespace presum::metrics
