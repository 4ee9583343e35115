// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "metrics/worker_record.h"
#include "presum/step_record.h"

namespace presum::metrics {

// Of the groups that all of these workers told of, in the first one's order; empty for fewer than
// two workers. Groups with something that is not finite, or into which nothing was put, are left
// out. Pure: docs/metrics.md, "Layer by layer".
std::vector<LayerReduction> layer_reductions(Steps steps);

}  // namespace presum::metrics
