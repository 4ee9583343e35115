// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "presum/reduce.h"

// Adds the dot product of leaves a and b to gram[a * leaves + b], on checked arguments. Blocks of
// kGramBlock elements are added one after the other. In a block, element i belongs to lane i mod
// 16; lanes are added in order, and then in halves: lane j and j + 8, j + 4, j + 2, j + 1. Products
// of elements are exact, except for f64, where they are rounded.
namespace presum::reduce {

inline constexpr std::size_t kGramBlock = 256;
inline constexpr std::size_t kGramLanes = 16;
inline constexpr std::size_t kGramLeavesMax = 64;

void gram_kernel(Leaves leaves, Dtype dtype, std::size_t count, std::span<double> gram);

}  // namespace presum::reduce
