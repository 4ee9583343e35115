// SPDX-License-Identifier: Apache-2.0
// Cosines of a step that are known exactly: docs/metrics.md, "Corrections".
#pragma once

#include <optional>

#include "metrics/norm_sums.h"
#include "metrics/reduced_gradient.h"
#include "metrics/sketch_cosines.h"
#include "metrics/worker_record.h"
#include "presum/step_record.h"

namespace presum::metrics {

// For a step in which each rank computed a share of the dot products of all pairs. Fills in the
// cosines, with the matrix if `pairwise`, and, if `norms` is complete, the norm of the mean
// gradient. Distrusts G if it does not fit the products. Returns the sum over i != j of <g_i, g_j>.
// Returns nothing and changes nothing if the products are unknown or contradict the norms, or if
// fewer than two ranks have a finite, non-zero gradient.
std::optional<double> fill_gram_cosines(Steps steps, bool pairwise, const NormSums& norms,
                                        ReducedGradient& reduced, StepRecord& record);

// Fills in the cosine of two ranks, which follows from the norm of the reduced gradient. Returns
// false if there are not two ranks with non-zero gradients, or if G is unknown. Also returns false,
// and distrusts G, if the cosine does not fit the norms or the ranks' sketches in `directed`.
bool fill_exact_pair(Steps steps, const Directions& directed, bool pairwise,
                     ReducedGradient& reduced, StepRecord& record);

}  // namespace presum::metrics
