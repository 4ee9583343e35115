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
  alignas(64) std::array<double, kScanLanes> ratios{};  // of |error| to the sum of |x|
  alignas(64) std::array<double, kScanLanes> largest_ratios{};
  std::array<std::uint64_t, 5> counts{};  // as Bounds::count
};

// What became of a tile.
struct ScannedTile {
  static constexpr std::size_t kFew = 4;

  std::array<std::uint64_t, kFew> few{};                   // elements that are 0, 1, 2, 3 ulps off
  std::array<std::uint32_t, kScanTile + kScanLanes> ulps;  // of the others, and room to write
  std::size_t ulps_count = 0;
  // Elements that the loop leaves to the definition: not finite, denormal, near the largest, of
  // another sign than the sum, or so near a tie that sums in double do not tell. In none of the
  // counts above.
  std::array<std::uint16_t, kScanTile> left;
  std::size_t left_count = 0;
};

// What the loop needs to know of dtype, divisor and bounds.
struct ScanPlan {
  ScanPlan(std::uint32_t workers, Dtype dtype, std::uint32_t divisor, const Bounds& bounds);

  // Bits of a double behind those of the dtype.
  static constexpr int shift_of(Dtype dtype) {
    if (dtype == Dtype::kF64) return 0;
    return dtype == Dtype::kF32 ? 53 - 24 : dtype == Dtype::kF16 ? 53 - 11 : 53 - 8;
  }

  Dtype dtype;
  double divisor;
  double inverse;         // 1 / divisor, rounded
  bool exact_quotient;    // it is a power of two
  double margin_of_size;  // how far a sum in double can be from the exact one, of the sum of |x|
  double least, most;     // values from the one to below the other are normal and do not overflow
  double usual_of_values, usual_of_sum;
  struct Limit {
    bool own;  // the sum is of the dtype
    double relative, tiny, unit;
    double half_ulp;       // of the power of two at or below a value
    double least_power;    // that power is at least this
    std::uint64_t behind;  // bits of a double that are zero in values of the format
    double least_normal, most_finite, least_spacing;
    double coarse;  // of a value that is none of the format's
    bool narrowest;
  };
  std::array<Limit, 4> limits;
  std::size_t formats;
  std::size_t sieve;  // the narrowest format that has no usual error: what is within is not far
};

// Adds `count` elements of a result, and of every leaf from `first` on. REQUIRES: a multiple of 16,
// at most kScanTile; fp32, bf16 or fp16; a divisor up to 2^28; the default floating-point
// environment.
void scan_tile(const ScanPlan& plan, std::span<const void* const> leaves, const void* result,
               std::size_t first, std::size_t count, ScanSums& sums, ScannedTile& tile);

}  // namespace presum::audit
