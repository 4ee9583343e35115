// SPDX-License-Identifier: Apache-2.0
// The cosines of a step whose dot products of all pairs are known: docs/metrics.md, "Corrections".
#pragma once

#include <cstddef>
#include <vector>

#include "metrics/gram.h"
#include "metrics/norm_sums.h"
#include "metrics/reduced_gradient.h"
#include "presum/step_record.h"

namespace presum::metrics {

// Fills in the cosines, the matrix too where `pairwise`, and, if `norms` is complete, the norm of
// the mean gradient; then G is distrusted where it does not fit the matrix. False, and nothing
// changes, where fewer than two workers have a finite, non-zero gradient.
bool fill_gram_cosines(const Gram& gram, bool pairwise, const NormSums& norms,
                       ReducedGradient& reduced, StepRecord& record);

}  // namespace presum::metrics
