// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "reduce/format.h"
#include "reduce/gram.h"

namespace presum::reduce {
namespace {

double value_at(const void* leaf, std::size_t i, Dtype dtype) {
  const Element e = element_at(leaf, i, dtype);
  const double sign = e.negative ? -1 : 1;
  if (e.kind == Element::Kind::kNan) return std::numeric_limits<double>::quiet_NaN();
  if (e.kind == Element::Kind::kInfinite) return sign * std::numeric_limits<double>::infinity();
  return sign * std::ldexp(static_cast<double>(e.mantissa), e.shift + format_of(dtype).unit());
}

double block_dot(const void* a, const void* b, Dtype dtype, std::size_t first, std::size_t size) {
  std::array<double, kGramLanes> sums{};
  for (std::size_t i = 0; i < size; ++i) {
    sums[i % kGramLanes] += value_at(a, first + i, dtype) * value_at(b, first + i, dtype);
  }
  for (std::size_t half = kGramLanes / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

}  // namespace

void gram_reference(Leaves leaves, Dtype dtype, std::size_t count, std::span<double> gram) {
  const std::size_t n = leaves.size();
  for (std::size_t first = 0; first < count; first += kGramBlock) {
    const std::size_t size = std::min(kGramBlock, count - first);
    for (std::size_t a = 0; a < n; ++a) {
      for (std::size_t b = 0; b < n; ++b) {
        gram[a * n + b] += block_dot(leaves[a], leaves[b], dtype, first, size);
      }
    }
  }
}

}  // namespace presum::reduce
