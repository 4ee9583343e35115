// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

// Exact zeros are counted among the first 64 of every 960 elements, because counting among all
// costs an eighth of the pass. The period is 15 runs, so that in rows whose length is a power of
// two every position gets sampled.
namespace presum::observe {

inline constexpr std::uint64_t kZeroRun = 64;
inline constexpr std::uint64_t kZeroPeriod = 15 * kZeroRun;

constexpr bool is_looked_at(std::uint64_t index) { return index % kZeroPeriod < kZeroRun; }

constexpr std::uint64_t elements_looked_at(std::uint64_t count) {
  return count / kZeroPeriod * kZeroRun + std::min(count % kZeroPeriod, kZeroRun);
}

}  // namespace presum::observe
