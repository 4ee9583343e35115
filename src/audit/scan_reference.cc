// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>

#include "audit/scan_kernel.h"
#include "audit/values.h"
#include "base/float_environment.h"

namespace presum::audit {
namespace {

using Pointers = std::span<const void* const>;

struct Tile {
  std::array<double, kScanTile> sums{};
  std::array<double, kScanTile> sizes{};

  // Whether no addition was rounded.
  bool add_all(Pointers leaves, Dtype dtype, std::size_t first, std::size_t count) {
    std::array<double, kScanTile> values;
    base::clear_inexact();
    for (const void* leaf : leaves) {
      unpack<double>(leaf, first, dtype, std::span(values).first(count));
      for (std::size_t i = 0; i < count; ++i) {
        sums[i] += values[i];
        sizes[i] += std::abs(values[i]);
      }
    }
    return !base::inexact(this) && base::inexact_is_reported();
  }
};

double rounded(double x, int shift) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const std::uint64_t half = (std::uint64_t{1} << (shift - 1)) - 1;
  const std::uint64_t up = bits + half + ((bits >> shift) & 1);
  return std::bit_cast<double>(up >> shift << shift);
}

struct Element {
  double result, sum, size, mean, rounded;
};

// False where the element is left to the definition.
bool round_sum(const ScanPlan& plan, bool exact, Element& e) {
  if (e.size == 0 && e.result == 0) return true;
  e.mean = e.sum * plan.inverse;
  const double size = std::abs(e.mean), result_size = std::abs(e.result);
  const bool normal =
      std::min(size, result_size) >= plan.least && std::max(size, result_size) < plan.most;
  if (!normal || !(e.mean * e.result > 0)) return false;
  const double margin = exact ? 0 : e.size * plan.margin_of_size + size * 0x1p-52;
  e.rounded = rounded(e.mean - margin, plan.shift);
  return exact || e.rounded == rounded(e.mean + margin, plan.shift);
}

std::uint32_t ulps_of(const ScanPlan& plan, const Element& e) {
  const auto a = std::bit_cast<std::uint64_t>(std::abs(e.result));
  const auto b = std::bit_cast<std::uint64_t>(std::abs(e.rounded));
  return static_cast<std::uint32_t>((std::max(a, b) - std::min(a, b)) >> plan.shift);
}

void count_ulps(std::uint32_t ulps, ScannedTile& tile) {
  if (ulps < ScannedTile::kFew) {
    ++tile.few[ulps];
  } else {
    tile.ulps[tile.ulps_count++] = ulps;
  }
}

bool is_value(const ScanPlan::Limit& limit, double x) {
  const double steps = std::abs(x) * limit.least_spacing;
  if (std::abs(x) < limit.least_normal) return std::rint(steps) == steps;
  return (std::bit_cast<std::uint64_t>(x) & limit.behind) == 0 && std::abs(x) <= limit.most_finite;
}

double rounding(const ScanPlan::Limit& limit, double result, double size, double power) {
  if (!limit.own && !is_value(limit, result)) return size * limit.coarse;
  return std::max(power, limit.least_power) * limit.half_ulp + limit.tiny;
}

void judge(const ScanPlan& plan, const Element& e, double off, ScanSums& sums) {
  const double size = std::max(std::abs(e.result), std::abs(e.mean));
  const double power =
      std::bit_cast<double>(std::bit_cast<std::uint64_t>(size) & (std::uint64_t{0x7FF} << 52));
  const double half = power * plan.limits[0].half_ulp;
  const auto within = [&](const ScanPlan::Limit& limit) {
    return off <= half + (e.size * limit.relative + limit.tiny);
  };
  sums.counts[0] += !within(plan.limits[0]);
  if (within(plan.limits[plan.sieve])) return;
  const double usual = e.size * plan.usual_of_values + std::abs(e.sum) * plan.usual_of_sum;
  bool far = off > 0;
  for (std::size_t f = 1; f < plan.formats; ++f) {
    const ScanPlan::Limit& limit = plan.limits[f];
    const double least = rounding(limit, e.result, size, power);
    const double most = e.size * limit.relative;
    sums.counts[f] += off > least + most;
    if (limit.narrowest) far = far && off > least + std::min(most, usual * limit.unit);
  }
  sums.counts[plan.formats] += far;
}

void add(const ScanPlan& plan, const Element& e, std::size_t lane, ScanSums& sums) {
  const double error = e.result * plan.divisor - e.sum;
  const double off = std::abs(error);
  sums.squared_errors[lane] += error * error;
  sums.squared_sums[lane] += e.sum * e.sum;
  const double ratio = off / std::max(e.size, 0x1p-1000);
  sums.ratios[lane] += ratio;
  sums.largest_ratios[lane] = std::max(sums.largest_ratios[lane], ratio);
  judge(plan, e, off, sums);
}

ScanPlan::Limit limit_of(const Bounds::Limit& limit, Dtype dtype, std::uint32_t workers) {
  const int bits = significand_bits(limit.wire);
  const int exponent = smallest_exponent(limit.wire);
  // Sums in double are as exact as a format of doubles is.
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
      shift(shift_of(type)),
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

void scan_tile_reference(const ScanPlan& plan, Pointers leaves, const void* result,
                         std::size_t first, std::size_t count, ScanSums& sums, ScannedTile& tile) {
  Tile of_leaves;
  std::array<double, kScanTile> results;
  const bool exact = of_leaves.add_all(leaves, plan.dtype, first, count) && plan.exact_quotient;
  unpack<double>(result, first, plan.dtype, std::span(results).first(count));
  tile.few = {};
  for (std::size_t i = 0; i < count; ++i) {
    Element e{results[i], of_leaves.sums[i], of_leaves.sizes[i], 0, 0};
    if (!round_sum(plan, exact, e)) {
      tile.left[tile.left_count++] = static_cast<std::uint16_t>(i);
      e = {};
    }
    count_ulps(ulps_of(plan, e), tile);
    add(plan, e, i % kScanLanes, sums);
  }
  tile.few[0] -= tile.left_count;
}

}  // namespace presum::audit
