// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "presum/dtype.h"

// Samples a few elements of buffers for comparison with later values.
namespace presum::observe {

struct Buffer {
  const void* data = nullptr;
  std::size_t count = 0;
  Dtype dtype = Dtype::kF32;
};

// Returns at most `each` elements of each buffer, evenly spaced from its first, concatenated.
std::vector<double> value_sample(std::span<const Buffer> buffers, std::size_t each);

// Returns the factor between the values before and now: exactly 1 only if every bit is unchanged;
// NaN if no factor of 0 or more explains the change, because the directions differ by more than
// rounding to 16 bits. Empty if the factor is unknown: the numbers of values differ, all values
// were zero, or some values or their squares are not finite.
std::optional<double> value_factor(std::span<const double> before, std::span<const double> now);

}  // namespace presum::observe
