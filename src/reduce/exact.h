// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "presum/reduce.h"

// presum::reduce::exact on checked arguments: the kernel for every SIMD target, and the same in
// plain code.
namespace presum::reduce {

// Maximum number of elements that kernels sum together, so that their accumulators stay in the
// caches.
inline constexpr std::size_t kTile = 2048;

void exact_kernel(Leaves leaves, Dtype dtype, std::size_t count, std::uint32_t divisor, void* out);

// Returns the bits of one element of the result.
std::uint64_t exact_sum(Leaves leaves, Dtype dtype, std::size_t i, std::uint32_t divisor);

// Computes elements first to first + count - 1 of the buffers.
void exact_reference(Leaves leaves, Dtype dtype, std::size_t first, std::size_t count,
                     std::uint32_t divisor, void* out);

}  // namespace presum::reduce
