// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "presum/dtype.h"

// A few elements of buffers, kept to be held against what is there later.
namespace presum::observe {

struct Buffer {
  const void* data = nullptr;
  std::size_t count = 0;
  Dtype dtype = Dtype::kF32;
};

// At most `each` elements of each buffer, at equal distances from its first, one after the other.
std::vector<double> value_sample(std::span<const Buffer> buffers, std::size_t each);

// What multiplied the values since: exactly 1 only where every bit is what it was, NaN where it is
// no factor of 0 or more: their directions differ by more than rounding to 16 bits explains.
// Nothing where that is not known: other numbers of values, all of them zero before, or some that
// are not finite, or so large that their squares are not.
std::optional<double> value_factor(std::span<const double> before, std::span<const double> now);

}  // namespace presum::observe
