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

// Of a step of which each worker computed a share of the dot products of all pairs: fills in the
// cosines, the matrix too where `pairwise`, and, if `norms` is complete, the norm of the mean
// gradient; then G is distrusted where it does not fit the products. Returns the sum over i != j of
// <g_i, g_j>. None, and nothing changes, where the products are not known or contradict the norms,
// and where fewer than two workers have a finite, non-zero gradient.
std::optional<double> fill_gram_cosines(Steps steps, bool pairwise, const NormSums& norms,
                                        ReducedGradient& reduced, StepRecord& record);

// Two workers' cosine follows from the norm of the reduced gradient: fills it in. False where there
// are not two workers with non-zero gradients, or where G is not known; and where the cosine does
// not fit the norms or, in `directed`, the workers' sketches: then G is distrusted.
bool fill_exact_pair(Steps steps, const Directions& directed, bool pairwise,
                     ReducedGradient& reduced, StepRecord& record);

}  // namespace presum::metrics
