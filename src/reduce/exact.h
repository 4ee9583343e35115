// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "presum/reduce.h"

// presum::reduce::exact on arguments that have been checked. The kernel, for every SIMD target, and
// the same in plain code.
namespace presum::reduce {

// Elements that kernels sum together, at most: their accumulators stay in the caches.
inline constexpr std::size_t kTile = 2048;

void exact_kernel(Leaves leaves, Dtype dtype, std::size_t count, std::uint32_t divisor, void* out);

// The bits of one element of the result.
std::uint64_t exact_sum(Leaves leaves, Dtype dtype, std::size_t i, std::uint32_t divisor);

// Elements first to first + count of the buffers.
void exact_reference(Leaves leaves, Dtype dtype, std::size_t first, std::size_t count,
                     std::uint32_t divisor, void* out);

}  // namespace presum::reduce
