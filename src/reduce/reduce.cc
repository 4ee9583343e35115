// SPDX-License-Identifier: Apache-2.0
#include "presum/reduce.h"

#include <array>
#include <string>

#include "base/try.h"
#include "reduce/checks.h"
#include "reduce/exact.h"
#include "reduce/gram.h"

namespace presum::reduce {
namespace {

using OffsetLeaves = std::array<const void*, kGramLeavesMax>;

Leaves offset(Leaves leaves, std::size_t bytes, OffsetLeaves& to) {
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    to[i] = static_cast<const std::byte*>(leaves[i]) + bytes;
  }
  return {to.data(), leaves.size()};
}

}  // namespace

Status exact(Leaves leaves, Dtype dtype, std::size_t count, std::uint32_t divisor, void* out) {
  PRESUM_TRY(check(leaves.size(), kLeavesMax, divisor, dtype));
  exact_kernel(leaves, dtype, count, divisor, out);
  return {};
}

Status exact_with_gram(Leaves leaves, Dtype dtype, std::size_t count, std::uint32_t divisor,
                       void* out, std::span<double> gram) {
  const std::size_t n = leaves.size();
  PRESUM_TRY(check(n, kGramLeavesMax, divisor, dtype));
  if (gram.size() != n * n) {
    return refuse("gram has " + std::to_string(gram.size()) + " numbers instead of " +
                  std::to_string(n * n));
  }
  // Works in parts that stay in the cache. Computes the products first, because `out` may be one of
  // the leaves.
  static_assert(kTile % kGramBlock == 0);
  for (std::size_t first = 0; first < count; first += kTile) {
    const std::size_t size = std::min(kTile, count - first);
    const std::size_t bytes = first * element_bytes(dtype);
    OffsetLeaves storage;
    const Leaves part = offset(leaves, bytes, storage);
    gram_kernel(part, dtype, size, gram);
    exact_kernel(part, dtype, size, divisor, static_cast<std::byte*>(out) + bytes);
  }
  return {};
}

}  // namespace presum::reduce
