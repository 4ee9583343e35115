// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "presum/dtype.h"

namespace presum::observe {

// The dot product of two buffers of one dtype. Products are added in double, element i in
// accumulator i mod 16, the 16 added as a tree: of fp32 and 16-bit elements each product is exact.
// Bit-identical on every processor, but for the bits of a NaN. 0 for no elements; any alignment;
// the buffers are borrowed and may be the same. The caller's floating-point environment neither
// matters nor is changed. Thread-safe; nothing allocates.
double dot(const void* a, const void* b, std::size_t count, Dtype dtype) noexcept;

// Plain code with the same result.
double dot_reference(const void* a, const void* b, std::size_t count, Dtype dtype) noexcept;

}  // namespace presum::observe
