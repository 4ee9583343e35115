// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "metrics/worker_record.h"
#include "presum/step_record.h"

namespace presum::metrics {

// Returns the reductions of the groups that all of these ranks reported, in the first rank's order;
// empty for fewer than two ranks. Skips groups with a non-finite value or with a zero contribution.
// Pure: docs/metrics.md, "Layer by layer".
std::vector<LayerReduction> layer_reductions(Steps steps);

// For a sharded model, in which each rank read its part of the reduced gradient: gives all ranks
// the norm and a fingerprint of the whole, if all parts of all groups were reported. Changes
// nothing for an unsharded model. REQUIRES: `steps` and `workers` are parallel.
void join_shards(Steps steps, std::span<WorkerRecord> workers);

}  // namespace presum::metrics
