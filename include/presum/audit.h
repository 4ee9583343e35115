// SPDX-License-Identifier: Apache-2.0
// What an all-reduce did to the bits of a gradient, as measured by one rank (docs/audit.md). Plain
// values; the numbers of the enumerators never change.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

namespace presum {

// The narrowest format to which partial sums were rounded.
enum class Accumulation : std::uint8_t { kUnknown = 0, kF64 = 1, kF32 = 2, kF16 = 3, kBF16 = 4 };

// The order in which the values of the ranks were added.
enum class SumOrder : std::uint8_t {
  kUnknown = 0,
  kAny = 1,         // every order gives the same bits here
  kExact = 2,       // the correctly rounded sum
  kSequential = 3,  // rank 0, 1, 2, ...
  kRing = 4,        // chunks of the buffer, each starting at another rank, in ascending order
  kRingDown = 5,    // like kRing, in descending order
  kTree = 6,        // adjacent ranks in pairs, then pairs of pairs
  kHalving = 7,     // rank i with i + W/2, then i with i + W/4, ...
};

// How the sum became a mean.
enum class Division : std::uint8_t {
  kUnknown = 0,
  kNone = 1,            // not divided: the result is the sum
  kBeforeMultiply = 2,  // each rank's value times the rounded 1/W, as in DDP
  kBeforeDivide = 3,    // each rank's value divided by W
  kAfterMultiply = 4,   // the sum times the rounded 1/W
  kAfterDivide = 5,     // the sum divided by W
  kOnce = 6,            // the exact mean, rounded once
};

// Whether the same reduction of the same values gave the same bits twice.
enum class Repeat : std::uint8_t { kNotTried = 0, kEqual = 1, kDifferent = 2 };

const char* to_string(Accumulation accumulation);  // "unknown", "fp64", "fp32", "fp16", "bf16"
const char* to_string(SumOrder order);             // "unknown", "any", "exact", "sequential", ...
const char* to_string(Division division);          // "unknown", "none", "before-multiply", ...
const char* to_string(Repeat repeat);              // "not-tried", "equal", "different"

// Number of significand bits; 0 for kUnknown.
int significand_bits(Accumulation accumulation);

// Percentiles of the distance from the correctly rounded value, over the finite elements, in units
// in the last place of the gradients' format. Values up to 4,096 are exact; above that, a
// percentile is the upper end of its power-of-two range. `max` is the largest distance.
struct UlpPercentiles {
  std::uint64_t p50 = 0;
  std::uint64_t p90 = 0;
  std::uint64_t p99 = 0;
  std::uint64_t max = 0;
};

// The audit of one reduction. NaN: unknown.
struct AuditRecord {
  std::uint64_t elements = 0;
  std::uint64_t differing = 0;  // elements that are not the correctly rounded value
  std::uint64_t wrong = 0;      // elements further off than rounding in `accumulation` explains
  // |error| / |exact|, both L2 norms
  double relative_l2 = std::numeric_limits<double>::quiet_NaN();
  double error_max = std::numeric_limits<double>::quiet_NaN();  // largest |error| / sum of |x|
  Accumulation gradient = Accumulation::kUnknown;               // the format of the input
  Accumulation accumulation = Accumulation::kUnknown;           // the format that the audit found
  SumOrder order = SumOrder::kUnknown;
  Division division = Division::kUnknown;
  Repeat repeat = Repeat::kNotTried;
  std::optional<UlpPercentiles> ulps = {};  // empty if no element is finite
};

}  // namespace presum
