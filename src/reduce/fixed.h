// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "presum/reduce.h"
#include "reduce/fixed_element.h"

// The steps of presum::reduce's fixed sums on arguments that have been checked. Kernels, for every
// SIMD target, and the same in plain code. Integers are std::int32_t or std::int64_t.
namespace presum::reduce {

void exponents_kernel(Leaves leaves, Dtype dtype, std::size_t count, std::uint8_t* exponents);
template <class Integer>
void encode_kernel(Leaves leaves, Dtype dtype, std::size_t count, const std::uint8_t* exponents,
                   std::size_t total_leaves, Integer* out);
template <class Integer>
void decode_kernel(const Integer* sums, const std::uint8_t* exponents, std::size_t count,
                   std::size_t total_leaves, std::uint32_t divisor, Dtype dtype, void* out);

// All steps of leaves that are all here.
template <class Integer>
void fixed_kernel(Leaves leaves, Dtype dtype, std::size_t count, std::uint32_t divisor, void* out);

// Elements first to first + count of the leaves; exponents and integers of these alone. decode's
// buffers all start at element 0.
void exponents_reference(Leaves leaves, Dtype dtype, std::size_t first, std::size_t count,
                         std::uint8_t* exponents);
template <class Integer>
void encode_reference(Leaves leaves, Dtype dtype, std::size_t first, std::size_t count,
                      const std::uint8_t* exponents, std::size_t total_leaves, Integer* out);
template <class Integer>
void decode_reference(const Integer* sums, const std::uint8_t* exponents, std::size_t first,
                      std::size_t count, std::size_t total_leaves, std::uint32_t divisor,
                      Dtype dtype, void* out);
template <class Integer>
void fixed_reference(Leaves leaves, Dtype dtype, std::size_t first, std::size_t count,
                     std::uint32_t divisor, void* out);

}  // namespace presum::reduce
