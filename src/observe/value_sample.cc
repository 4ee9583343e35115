// SPDX-License-Identifier: Apache-2.0
#include "observe/value_sample.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "observe/elements.h"

namespace presum::observe {
namespace {

constexpr double kSameDirection = 1 - 5e-5;  // the cosine that rounding to 16 bits preserves

double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

bool same_bits(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

}  // namespace

std::vector<double> value_sample(std::span<const Buffer> buffers, std::size_t each) {
  std::vector<double> out;
  for (const Buffer& buffer : buffers) {
    const Elements elements(buffer.data, buffer.dtype);
    const std::size_t taken = std::min(each, buffer.count);
    const std::size_t stride = taken == 0 ? 0 : buffer.count / taken;
    for (std::size_t i = 0; i < taken; ++i) out.push_back(elements.value(i * stride));
  }
  return out;
}

std::optional<double> value_factor(std::span<const double> before, std::span<const double> now) {
  if (before.size() != now.size()) return std::nullopt;
  if (std::ranges::equal(before, now, same_bits)) return 1.0;
  const double own = dot(before, before);
  const double product = dot(before, now);
  const double other = dot(now, now);
  if (own == 0 || !std::isfinite(own + other)) return std::nullopt;
  const bool straight = product >= kSameDirection * std::sqrt(own) * std::sqrt(other);
  if (!straight) return std::numeric_limits<double>::quiet_NaN();
  const double factor = product / own;
  return factor == 1 ? std::nextafter(1.0, 2.0) : factor;
}

}  // namespace presum::observe
