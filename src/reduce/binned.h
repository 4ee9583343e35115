// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "presum/reduce.h"
#include "reduce/binned_element.h"

// The steps of presum::reduce's binned sums on arguments that have been checked. Kernels, for every
// SIMD target, and the same in plain code.
namespace presum::reduce {

void binned_add_kernel(const Binned& sum, std::size_t count, const void* leaf, Dtype dtype);
void binned_decode_kernel(const Binned& sum, std::size_t count, std::uint32_t divisor, Dtype dtype,
                          void* out);

// Elements first to first + count of the buffers.
void binned_add_reference(const Binned& sum, std::size_t first, std::size_t count, const void* leaf,
                          Dtype dtype);
void binned_decode_reference(const Binned& sum, std::size_t first, std::size_t count,
                             std::uint32_t divisor, Dtype dtype, void* out);

// These two have no kernel: they run once a step, not once a leaf.
void binned_raise_all(const Binned& sum, std::size_t count, const std::uint8_t* top);
void binned_merge_all(const Binned& into, const Binned& from, std::size_t count);

}  // namespace presum::reduce
