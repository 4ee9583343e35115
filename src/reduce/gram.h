// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "presum/reduce.h"

// gram[a * leaves + b] += the dot product of leaves a and b, on arguments that have been checked.
// Blocks of kGramBlock elements are added one after the other. In a block, element i belongs to
// lane i mod 16, lanes add up in order, and then in halves: lane j and j + 8, j + 4, j + 2, j + 1.
// Products of elements are exact but those of f64, which are rounded.
namespace presum::reduce {

inline constexpr std::size_t kGramBlock = 256;
inline constexpr std::size_t kGramLanes = 16;
inline constexpr std::size_t kGramLeavesMax = 64;

void gram_kernel(Leaves leaves, Dtype dtype, std::size_t count, std::span<double> gram);

}  // namespace presum::reduce
