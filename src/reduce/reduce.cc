// SPDX-License-Identifier: Apache-2.0
#include "presum/reduce.h"

#include <array>
#include <string>

#include "reduce/binned.h"
#include "reduce/checks.h"
#include "reduce/exact.h"
#include "reduce/fixed.h"
#include "reduce/gram.h"
#include "reduce/tile.h"

namespace presum::reduce {
namespace {

using OffsetLeaves = std::array<const void*, kGramLeavesMax>;

Leaves offset(Leaves leaves, std::size_t bytes, OffsetLeaves& to) {
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    to[i] = static_cast<const std::byte*>(leaves[i]) + bytes;
  }
  return {to.data(), leaves.size()};
}

template <class Integer>
Status encode(Leaves leaves, Dtype dtype, std::size_t count, const std::uint8_t* exponents,
              std::size_t total_leaves, Integer* out) {
  Status status = all_of(check_leaves(leaves.size(), kLeavesMax),
                         check_total(total_leaves, leaves.size()), check_short_dtype(dtype));
  if (status) encode_kernel(leaves, dtype, count, exponents, total_leaves, out);
  return status;
}

template <class Integer>
Status decode(const Integer* sums, const std::uint8_t* exponents, std::size_t count,
              std::size_t total_leaves, std::uint32_t divisor, Dtype dtype, void* out) {
  Status status =
      all_of(check_total(total_leaves, 0), check_divisor(divisor), check_short_dtype(dtype));
  if (status) decode_kernel(sums, exponents, count, total_leaves, divisor, dtype, out);
  return status;
}

template <class Integer>
Status fixed(Leaves leaves, Dtype dtype, std::size_t count, std::uint32_t divisor, void* out) {
  Status status = all_of(check_leaves(leaves.size(), kLeavesMax), check_divisor(divisor),
                         check_short_dtype(dtype));
  if (status) fixed_kernel<Integer>(leaves, dtype, count, divisor, out);
  return status;
}

}  // namespace

Status exact(Leaves leaves, Dtype dtype, std::size_t count, std::uint32_t divisor, void* out) {
  Status status = all_of(check_leaves(leaves.size(), kLeavesMax), check_divisor(divisor),
                         check_any_dtype(dtype));
  if (status) exact_kernel(leaves, dtype, count, divisor, out);
  return status;
}

Status exact_with_gram(Leaves leaves, Dtype dtype, std::size_t count, std::uint32_t divisor,
                       void* out, std::span<double> gram) {
  const std::size_t n = leaves.size();
  Status status =
      all_of(check_leaves(n, kGramLeavesMax), check_divisor(divisor), check_any_dtype(dtype));
  if (status && gram.size() != n * n) {
    status = refuse("gram has " + std::to_string(gram.size()) + " numbers instead of " +
                    std::to_string(n * n));
  }
  if (!status) return status;
  // In parts that stay in the cache; products first, because `out` may be one of the leaves.
  static_assert(kTile % kGramBlock == 0);
  for (std::size_t first = 0; first < count; first += kTile) {
    const std::size_t size = std::min(kTile, count - first);
    const std::size_t bytes = first * element_bytes(dtype);
    OffsetLeaves storage;
    const Leaves part = offset(leaves, bytes, storage);
    gram_kernel(part, dtype, size, gram);
    exact_kernel(part, dtype, size, divisor, static_cast<std::byte*>(out) + bytes);
  }
  return status;
}

Status exponents(Leaves leaves, Dtype dtype, std::size_t count, std::uint8_t* exponents) {
  Status status = all_of(check_leaves(leaves.size(), kLeavesMax), check_short_dtype(dtype));
  if (status) exponents_kernel(leaves, dtype, count, exponents);
  return status;
}

Status encode32(Leaves leaves, Dtype dtype, std::size_t count, const std::uint8_t* exponents,
                std::size_t total_leaves, std::int32_t* out) {
  return encode(leaves, dtype, count, exponents, total_leaves, out);
}

Status encode64(Leaves leaves, Dtype dtype, std::size_t count, const std::uint8_t* exponents,
                std::size_t total_leaves, std::int64_t* out) {
  return encode(leaves, dtype, count, exponents, total_leaves, out);
}

Status decode32(const std::int32_t* sums, const std::uint8_t* exponents, std::size_t count,
                std::size_t total_leaves, std::uint32_t divisor, Dtype dtype, void* out) {
  return decode(sums, exponents, count, total_leaves, divisor, dtype, out);
}

Status decode64(const std::int64_t* sums, const std::uint8_t* exponents, std::size_t count,
                std::size_t total_leaves, std::uint32_t divisor, Dtype dtype, void* out) {
  return decode(sums, exponents, count, total_leaves, divisor, dtype, out);
}

Status fixed32(Leaves leaves, Dtype dtype, std::size_t count, std::uint32_t divisor, void* out) {
  return fixed<std::int32_t>(leaves, dtype, count, divisor, out);
}

Status fixed64(Leaves leaves, Dtype dtype, std::size_t count, std::uint32_t divisor, void* out) {
  return fixed<std::int64_t>(leaves, dtype, count, divisor, out);
}

Status binned_add(Binned sum, std::size_t count, const void* leaf, Dtype dtype) {
  Status status = check_short_dtype(dtype);
  if (status) binned_add_kernel(sum, count, leaf, dtype);
  return status;
}

Status binned_raise(Binned sum, std::size_t count, const std::uint8_t* top) {
  binned_raise_all(sum, count, top);
  return {};
}

Status binned_merge(Binned into, Binned from, std::size_t count) {
  binned_merge_all(into, from, count);
  return {};
}

Status binned_decode(Binned sum, std::size_t count, std::uint32_t divisor, Dtype dtype, void* out) {
  Status status = all_of(check_divisor(divisor), check_short_dtype(dtype));
  if (status) binned_decode_kernel(sum, count, divisor, dtype, out);
  return status;
}

}  // namespace presum::reduce
