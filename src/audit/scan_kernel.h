// SPDX-License-Identifier: Apache-2.0
// The inner loop of Scan, for values that fp32 holds. All targets give the same bits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "audit/bounds.h"
#include "presum/dtype.h"

namespace presum::audit {

inline constexpr std::size_t kScanTile = 1024;
inline constexpr std::size_t kScanLanes = 16;

// Sums in lanes: element i of a tile belongs to lane i % 16. Errors and sums are times the divisor.
struct ScanSums {
  alignas(64) std::array<double, kScanLanes> squared_errors{};
  alignas(64) std::array<double, kScanLanes> squared_sums{};
  alignas(64) std::array<double, kScanLanes> ratios{};  // of |error| / sum of |x|
  alignas(64) std::array<double, kScanLanes> largest_ratios{};
  std::array<std::uint64_t, 5> counts{};  // as in Bounds::count
};

// The result for a tile.
struct ScannedTile {
  static constexpr std::size_t kFew = 4;

  // number of elements that are 0, 1, 2, 3 ulps off
  std::array<std::uint64_t, kFew> few{};
  // The distances of the other elements, with room for a full vector.
  std::array<std::uint32_t, kScanTile + kScanLanes> ulps;
  std::size_t ulps_count = 0;
  // Elements that the loop leaves to the plain definition: not finite, denormal, near the largest,
  // with another sign than the sum, or so near a tie that sums in double are inconclusive. They are
  // in none of the counts above.
  std::array<std::uint16_t, kScanTile> left;
  std::size_t left_count = 0;
};

// What the loop needs from dtype, divisor and bounds.
struct ScanPlan {
  ScanPlan(std::uint32_t workers, Dtype dtype, std::uint32_t divisor, const Bounds& bounds);

  // Number of a double's bits below those of the dtype.
  static constexpr int shift_of(Dtype dtype) {
    if (dtype == Dtype::kF64) return 0;
    return dtype == Dtype::kF32 ? 53 - 24 : dtype == Dtype::kF16 ? 53 - 11 : 53 - 8;
  }

  Dtype dtype;
  double divisor;
  double inverse;       // 1 / divisor, rounded
  bool exact_quotient;  // the divisor is a power of two
  // Maximum distance of a sum in double from the exact one, relative to the sum of |x|.
  double margin_of_size;
  // Values in [least, most) are normal and do not overflow.
  double least, most;
  double usual_of_values, usual_of_sum;
  struct Limit {
    bool own;  // the sum has the dtype
    double relative, tiny, unit;
    double half_ulp;       // of the largest power of two that does not exceed a value
    double least_power;    // lower limit for that power
    std::uint64_t behind;  // bits of a double that are zero in values of the format
    double least_normal, most_finite, least_spacing;
    // Rounding bound of a result that is not a value of the format, relative to its size.
    double coarse;
    bool narrowest;
  };
  std::array<Limit, 4> limits;
  std::size_t formats;
  // The narrowest format without a usual error: an element within its bound is not far.
  std::size_t sieve;
};

// Adds `count` elements of a result, and of every leaf, from `first` on. REQUIRES: count is a
// multiple of 16 and at most kScanTile; fp32, bf16 or fp16; a divisor up to 2^28; the default
// floating-point environment.
void scan_tile(const ScanPlan& plan, std::span<const void* const> leaves, const void* result,
               std::size_t first, std::size_t count, ScanSums& sums, ScannedTile& tile);

}  // namespace presum::audit
