// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/float_environment.h"
#include "observe/elements.h"
#include "observe/gradient_pass.h"
#include "observe/sketch.h"
#include "observe/zeros.h"

namespace presum::observe {
namespace {

constexpr std::size_t kAccumulators = 16;

double tree_sum(std::array<double, kAccumulators> sums) {
  for (std::size_t half = kAccumulators / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

void add_to_sketch(const Elements& elements, std::size_t count, std::uint64_t first,
                   SketchSpan sketch) {
  if (sketch.size == 0) return;
  std::uint64_t signs = 0;
  std::size_t rotation = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t at = first + i;
    if (i == 0 || at % 64 == 0) signs = sketch_signs(sketch.seed, at / 64);
    if (i == 0 || at % sketch.size == 0) {
      rotation = sketch_rotation(sketch.seed, at / sketch.size, sketch.size);
    }
    const auto value = static_cast<float>(elements.value(i));
    float& bucket = sketch.values[static_cast<std::size_t>(at + rotation) & (sketch.size - 1)];
    bucket += ((signs >> (at % 64)) & 1) != 0 ? -value : value;
  }
}

}  // namespace

GradientSums plain_norm(const void* data, std::size_t count, Dtype dtype) {
  const base::DefaultFloatEnvironment environment;
  const Elements elements(data, dtype);
  std::array<double, kAccumulators> sums{};
  GradientSums stats;
  bool any_nan = false;
  for (std::size_t i = 0; i < count; ++i) {
    const double value = elements.value(i);
    sums[i % kAccumulators] += value * value;
    stats.zeros += value == 0 && is_looked_at(i);
    if (std::isfinite(value)) {
      stats.max_abs = std::max(stats.max_abs, std::fabs(value));
    } else {
      ++stats.nonfinite;
      any_nan = any_nan || std::isnan(value);
    }
  }
  stats.sum_squares = any_nan ? std::numeric_limits<double>::quiet_NaN() : tree_sum(sums);
  return stats;
}

void sketch_part(const void* data, std::size_t count, Dtype dtype, std::uint64_t first,
                 SketchSpan sketch) noexcept {
  const base::DefaultFloatEnvironment environment;
  add_to_sketch(Elements(data, dtype), count, first, sketch);
}

}  // namespace presum::observe
