// SPDX-License-Identifier: Apache-2.0
// The storage order of values for pairs: row-major, (0,1), (0,2), ..., (1,2), ...
#pragma once

#include <cstddef>

namespace presum {

constexpr std::size_t pairs_of(std::size_t n) { return n < 2 ? 0 : n * (n - 1) / 2; }

// Returns the index of the pair (i, j) of n. REQUIRES: i < j < n.
constexpr std::size_t pair_position(std::size_t i, std::size_t j, std::size_t n) {
  return i * n - i * (i + 1) / 2 + j - i - 1;
}

}  // namespace presum
