// SPDX-License-Identifier: Apache-2.0
// What an all-reduce did to the bits of a gradient, as one worker found out (docs/audit.md). Plain
// values; the numbers of the enumerations never change.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

namespace presum {

// The narrowest format that partial sums were rounded to.
enum class Accumulation : std::uint8_t { kUnknown = 0, kF64 = 1, kF32 = 2, kF16 = 3, kBF16 = 4 };

// The order in which the workers' values were added.
enum class SumOrder : std::uint8_t {
  kUnknown = 0,
  kAny = 1,         // all orders give the same bits here
  kExact = 2,       // the correctly rounded sum
  kSequential = 3,  // worker 0, 1, 2, ...
  kRing = 4,        // pieces of the buffer, each beginning at another worker, upwards
  kRingDown = 5,    // likewise, downwards
  kTree = 6,        // neighbors in pairs, then pairs of pairs
  kHalving = 7,     // worker i and i + W/2, then i and i + W/4, ...
};

// How the sum became a mean.
enum class Division : std::uint8_t {
  kUnknown = 0,
  kNone = 1,            // it is the sum
  kBeforeMultiply = 2,  // every worker's value times the rounded 1/W, as DDP does
  kBeforeDivide = 3,    // every worker's value divided by W
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

// Bits of the significand; 0 for kUnknown.
int significand_bits(Accumulation accumulation);

// Distances from the correctly rounded value in units in the last place of the gradients' format,
// over the finite elements: what 50, 90, 99 % of them do not exceed (exact to 4,096, then at most
// the upper end of a power of two), and the largest.
struct UlpPercentiles {
  std::uint64_t p50 = 0;
  std::uint64_t p90 = 0;
  std::uint64_t p99 = 0;
  std::uint64_t max = 0;
};

// One audited reduction. NaN: not known.
struct AuditRecord {
  std::uint64_t elements = 0;
  std::uint64_t differing = 0;  // not the correctly rounded value
  std::uint64_t wrong = 0;      // further off than rounding in `accumulation` can explain
  double relative_l2 = std::numeric_limits<double>::quiet_NaN();  // |error| / |exact|
  double error_max = std::numeric_limits<double>::quiet_NaN();    // of |error| / sum of |x|
  Accumulation gradient = Accumulation::kUnknown;                 // the format of what went in
  Accumulation accumulation = Accumulation::kUnknown;             // as found
  SumOrder order = SumOrder::kUnknown;
  Division division = Division::kUnknown;
  Repeat repeat = Repeat::kNotTried;
  std::optional<UlpPercentiles> ulps = {};  // none where no element is finite
};

}  // namespace presum
