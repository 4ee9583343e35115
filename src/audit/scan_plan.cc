// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cmath>

#include "audit/scan_kernel.h"
#include "audit/values.h"

namespace presum::audit {
namespace {

ScanPlan::Limit limit_of(const Bounds::Limit& limit, Dtype dtype, std::uint32_t workers) {
  const int bits = significand_bits(limit.wire);
  const int exponent = smallest_exponent(limit.wire);
  // Sums in double are only as exact as a double format.
  const bool wide = significand_bits(dtype) <= 24 && limit.unit < 0x1p-50;
  return {.own = limit.wire == dtype,
          .relative = limit.relative + (wide ? 3 * workers * 0x1p-53 : 0),
          .tiny = limit.tiny,
          .unit = limit.unit,
          .half_ulp = std::ldexp(limit.half_ulps, -bits),
          .least_power = std::ldexp(1.0, exponent),
          .behind = (std::uint64_t{1} << (53 - bits)) - 1,
          .least_normal = std::ldexp(1.0, exponent),
          .most_finite = limit.wire == Dtype::kF16 ? 65504 : 0x1p128,
          .least_spacing = std::ldexp(1.0, bits - 1 - exponent),
          .coarse = limit.half_ulps * limit.unit,
          .narrowest = limit.narrowest};
}

}  // namespace

ScanPlan::ScanPlan(std::uint32_t workers, Dtype type, std::uint32_t by, const Bounds& bounds)
    : dtype(type),
      divisor(by),
      inverse(1.0 / by),
      exact_quotient(std::has_single_bit(by)),
      margin_of_size(workers * 0x1p-52 / by),
      least(std::ldexp(1.0, smallest_exponent(type))),
      most(type == Dtype::kF16 ? 0x1p15 : 0x1p127),
      usual_of_values(bounds.usual_of_values()),
      usual_of_sum(bounds.usual_of_sum()),
      limits{},
      formats(bounds.limits().size()),
      sieve(type == Dtype::kF32 ? 1 : 0) {
  for (std::size_t f = 0; f < formats; ++f) {
    limits[f] = limit_of(bounds.limits()[f], type, workers);
  }
}

}  // namespace presum::audit
