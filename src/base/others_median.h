// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace presum::base {

// Returns the median of all values but one. Sorts one copy of the values.
class OthersMedian {
 public:
  // REQUIRES: at least two values, no NaN.
  explicit OthersMedian(std::vector<double> values) : sorted_(std::move(values)) {
    std::ranges::sort(sorted_);
  }
  // REQUIRES: `value` is one of the values.
  double of(double value) const {
    const auto rank =
        static_cast<std::size_t>(std::ranges::lower_bound(sorted_, value) - sorted_.begin());
    const std::size_t others = sorted_.size() - 1;
    const auto at = [&](std::size_t k) { return sorted_[k < rank ? k : k + 1]; };
    return at((others - 1) / 2) / 2 + at(others / 2) / 2;
  }

 private:
  std::vector<double> sorted_;
};

}  // namespace presum::base
