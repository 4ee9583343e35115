// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "compare/compare.h"

namespace presum::compare {

// Facts of one model in two segments, by rank; where the numbers of workers differ, the values
// that a run's workers have, unless neither run's workers share one. A fact that only one run has
// counts as a difference if it defines the training or is an environment variable. Sorted by weight
// and key.
std::vector<FactDifference> differing_facts(std::span<const Fact> a, std::span<const Fact> b,
                                            bool same_world);

}  // namespace presum::compare
