// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "metrics/worker_record.h"
#include "presum/step_record.h"

namespace presum::metrics {

// Of the groups that all of these workers told of, in the first one's order; empty for fewer than
// two workers. Groups with something that is not finite, or into which nothing was put, are left
// out. Pure: docs/metrics.md, "Layer by layer".
std::vector<LayerReduction> layer_reductions(Steps steps);

// Of a sharded model each worker read a part of the reduced gradient: gives all of them the norm
// and a fingerprint of the whole, where every part of every group was told. Of a whole one nothing
// is changed. REQUIRES: `steps` and `workers` are parallel.
void join_shards(Steps steps, std::span<WorkerRecord> workers);

}  // namespace presum::metrics
