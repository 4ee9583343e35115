// SPDX-License-Identifier: Apache-2.0
// The usual value of a number in a rank's steps.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "blame/blame.h"

namespace presum::blame {

// The last kUsualSteps values of a quantity; values that are not finite are skipped.
class Usual {
 public:
  void add(double value) {
    if (!std::isfinite(value)) return;
    if (values_.size() < kUsualSteps) {
      values_.push_back(static_cast<float>(value));
      return;
    }
    values_[next_++ % kUsualSteps] = static_cast<float>(value);
  }
  // The median, the lower one if there are two; NaN without values.
  double median() const {
    if (values_.empty()) return kNaN;
    std::vector<float> sorted = values_;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>((sorted.size() - 1) / 2);
    std::ranges::nth_element(sorted, middle);
    return *middle;
  }

 private:
  std::vector<float> values_;  // a ring buffer once it is full
  std::size_t next_ = 0;
};

}  // namespace presum::blame
