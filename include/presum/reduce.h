// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "presum/dtype.h"
#include "presum/status.h"

// Sums of equally long buffers ("leaves": one micro-batch's gradient on one worker), element by
// element, whose bits do not depend on the order of leaves, on how they are divided over workers,
// or on the processor. docs/reduction.md has definitions, proofs, bounds and costs.
//
// For all functions: thread-safe; buffers are borrowed for the call, may be misaligned, and must
// not overlap outputs unless said. `divisor` divides the exact sum before the only rounding: 1 for
// the sum, the number of leaves for the mean; from 1 to 2^31-1. Rounding is to nearest, ties to
// even. Elements: NaN among the leaves, or infinities of both signs, give the quiet NaN 0x7FC00000
// (or its like in another dtype); else infinities win; an exact zero is +0; what is too large after
// rounding is an infinity. Denormals count in full, whatever the processor's flush modes are.
// A zero count does nothing. Errors (kInvalidArgument): no leaf, too many leaves, a divisor out of
// range, an unknown dtype.
namespace presum::reduce {

using Leaves = std::span<const void* const>;

inline constexpr std::size_t kLeavesMax = 32767;
inline constexpr std::uint32_t kDivisorMax = 0x7FFFFFFF;

// The correctly rounded sum: out[i] = round((sum of leaf[i]) / divisor). All dtypes; `out` has the
// leaves' dtype and may be one of the leaves.
Status exact(Leaves leaves, Dtype dtype, std::size_t count, std::uint32_t divisor, void* out);

// The same, and gram[a * leaves + b] += the dot product of leaves a and b in double (both
// triangles; the caller sets it to zero first). At most 64 leaves. Elements that are not finite
// make their products so. Sums run in a fixed order of 16 lanes, so bits do not depend on the
// processor.
Status exact_with_gram(Leaves leaves, Dtype dtype, std::size_t count, std::uint32_t divisor,
                       void* out, std::span<double> gram);

}  // namespace presum::reduce
