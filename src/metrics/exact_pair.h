// SPDX-License-Identifier: Apache-2.0
// Two workers' cosine follows from the norm of the reduced gradient: docs/metrics.md,
// "Corrections".
#pragma once

#include "metrics/reduced_gradient.h"
#include "metrics/sketch_cosines.h"
#include "metrics/worker_record.h"
#include "presum/step_record.h"

namespace presum::metrics {

// Fills in that cosine. False where there are not two workers with non-zero gradients, or where G
// is not known; and where the cosine does not fit the norms or, in `directed`, the workers'
// sketches: then G is distrusted.
bool fill_exact_pair(Steps steps, const DirectedWorkers& directed, bool pairwise,
                     ReducedGradient& reduced, StepRecord& record);

}  // namespace presum::metrics
