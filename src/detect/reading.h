// SPDX-License-Identifier: Apache-2.0
// What a worker, or a pair, shows at one step.
#pragma once

#include <cstdint>

namespace presum::detect {

enum class Side : std::uint8_t { kHigh = 0, kLow = 1 };
constexpr Side opposite(Side side) { return side == Side::kHigh ? Side::kLow : Side::kHigh; }

// Distance from the others: in their robust standard deviations, and the difference itself.
struct Reading {
  double effect = 0;
  double difference = 0;
};

// A worker's evidence counts only if its mean distance from the others is at least this many of
// their standard deviations.
inline constexpr double kLeastEffect = 0.25;

// Whether the same was raised just now; if not, it counts as raised at this step. `raised_at` is
// that step + 1; 0: never.
inline bool cooling(std::uint64_t& raised_at, std::uint64_t step, std::uint64_t cooldown) {
  if (raised_at != 0 && step + 1 - raised_at <= cooldown) return true;
  raised_at = step + 1;
  return false;
}

}  // namespace presum::detect
