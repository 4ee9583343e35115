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
// range, a dtype that the function does not take.
namespace presum::reduce {

using Leaves = std::span<const void* const>;

inline constexpr std::size_t kLeavesMax = 32767;
inline constexpr std::uint32_t kDivisorMax = 0x7FFFFFFF;

// ---- exact: the correctly rounded sum

// out[i] = round((sum of leaf[i]) / divisor). All dtypes; `out` has the leaves' dtype and may be
// one of the leaves.
Status exact(Leaves leaves, Dtype dtype, std::size_t count, std::uint32_t divisor, void* out);

// The same, and gram[a * leaves + b] += the dot product of leaves a and b in double (both
// triangles; the caller sets it to zero first). At most 64 leaves. Elements that are not finite
// make their products so. Sums run in a fixed order of 16 lanes, so bits do not depend on the
// processor.
Status exact_with_gram(Leaves leaves, Dtype dtype, std::size_t count, std::uint32_t divisor,
                       void* out, std::span<double> gram);

// ---- fixed: integers, so that any library's integer all-reduce gives the same bits
//
// One scale per element: the largest biased exponent of all leaves, as fp32 has it. Steps:
//   1. each worker: exponents() over its own leaves;   2. all-reduce MAX of uint8;
//   3. each worker: encode32() or encode64();          4. all-reduce SUM of int32 or int64;
//   5. each worker: decode32() or decode64().
// `total_leaves` is the number of leaves of all workers together, never the number of workers.
// fp32, bf16, fp16. Error of the sum: at most total_leaves * 2^(Emax - F) and half an ulp of the
// result, with F = 31 - ceil(log2(total_leaves)), or 63 for fixed64, and Emax the unbiased
// exponent; twice the first part where F is less than the element's bits (fp32 in fixed32 above 128
// leaves).

// exponents[i] = max over leaves of the biased fp32 exponent of leaf[i] (0 for zeros and fp32
// denormals, 255 for what is not finite).
Status exponents(Leaves leaves, Dtype dtype, std::size_t count, std::uint8_t* exponents);

// out[i] = sum over the local leaves of rint(leaf[i] * scale of exponents[i]). REQUIRES:
// exponents[i] is at least what exponents() gives for these leaves; otherwise out[i] is arbitrary.
Status encode32(Leaves leaves, Dtype dtype, std::size_t count, const std::uint8_t* exponents,
                std::size_t total_leaves, std::int32_t* out);
Status encode64(Leaves leaves, Dtype dtype, std::size_t count, const std::uint8_t* exponents,
                std::size_t total_leaves, std::int64_t* out);

Status decode32(const std::int32_t* sums, const std::uint8_t* exponents, std::size_t count,
                std::size_t total_leaves, std::uint32_t divisor, Dtype dtype, void* out);
Status decode64(const std::int64_t* sums, const std::uint8_t* exponents, std::size_t count,
                std::size_t total_leaves, std::uint32_t divisor, Dtype dtype, void* out);

// The same in one, where all leaves are here: the bits of the three steps with total_leaves =
// leaves.size(), for less time, because memory is read once. `out` has the leaves' dtype and may be
// one of the leaves.
Status fixed32(Leaves leaves, Dtype dtype, std::size_t count, std::uint32_t divisor, void* out);
Status fixed64(Leaves leaves, Dtype dtype, std::size_t count, std::uint32_t divisor, void* out);

// ---- binned: leaves that arrive one at a time and are not kept
//
// 17 bytes per element: the sum of the leaves' digits in the two highest absolute bins of 40 bits.
// A commutative monoid. fp32, bf16, fp16. Error of the sum: at most leaves * 2^-40 * max |leaf| and
// half an ulp of the result. Leaves must not be scaled differently; divide the sum instead.
// All three arrays have `count` elements; all zero is the empty sum. Up to 2^22 leaves.
struct Binned {
  std::uint8_t* top;   // highest bin so far; 0 where every leaf was zero
  std::int64_t* high;  // digits in bin `top`
  std::int64_t* low;   // digits in the bin below
};

Status binned_add(Binned sum, std::size_t count, const void* leaf, Dtype dtype);

// Brings each element to the bin top[i], where that is higher: digits below it and the next are
// dropped. After a MAX all-reduce of `top` and raise, an integer SUM all-reduce of `high` and of
// `low` merges the workers' sums.
Status binned_raise(Binned sum, std::size_t count, const std::uint8_t* top);

// into += from. `from` is not changed.
Status binned_merge(Binned into, Binned from, std::size_t count);

Status binned_decode(Binned sum, std::size_t count, std::uint32_t divisor, Dtype dtype, void* out);

}  // namespace presum::reduce
