// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "presum/dtype.h"
#include "presum/status.h"

// Sums of buffers of equal length, element by element. A buffer is a "leaf": the gradient of one
// micro-batch on one rank. The bits of a sum depend on neither the order of the leaves, nor their
// distribution over ranks, nor the processor. docs/reduction.md has definitions, proofs, error
// bounds and costs.
//
// All functions are thread-safe. They borrow buffers for the duration of the call. Buffers may be
// misaligned, and must not overlap the output unless stated. `divisor`, from 1 to 2^31-1, divides
// the exact sum before the only rounding: 1 gives the sum, the number of leaves gives the mean.
// Rounding is to nearest, ties to even. If an element is NaN in a leaf, or infinite with both
// signs, its result is the quiet NaN 0x7FC00000 (or its equivalent in another dtype); with
// infinities of one sign the result is that infinity. An exact zero is +0. A result too large after
// rounding is infinite. Denormals count in full, regardless of the processor's flush modes. A count
// of zero does nothing. Errors (kInvalidArgument): no leaf, too many leaves, a divisor out of
// range, an unknown dtype.
namespace presum::reduce {

using Leaves = std::span<const void* const>;

inline constexpr std::size_t kLeavesMax = 32767;
inline constexpr std::uint32_t kDivisorMax = 0x7FFFFFFF;

// Computes the correctly rounded sum: out[i] = round((sum of leaf[i]) / divisor). Supports all
// dtypes. `out` has the dtype of the leaves and may be one of them.
Status exact(Leaves leaves, Dtype dtype, std::size_t count, std::uint32_t divisor, void* out);

// Like `exact`, and adds the dot product of leaves a and b, in double, to gram[a * leaves + b]
// (both triangles; the caller zeroes `gram` first). At most 64 leaves. Elements that are not finite
// make their products non-finite. The sums run in a fixed order of 16 lanes, so their bits do not
// depend on the processor.
Status exact_with_gram(Leaves leaves, Dtype dtype, std::size_t count, std::uint32_t divisor,
                       void* out, std::span<double> gram);

}  // namespace presum::reduce
