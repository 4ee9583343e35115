// SPDX-License-Identifier: Apache-2.0
#include "blame/usual.h"

#include <algorithm>
#include <cmath>

#include "blame/blame.h"

namespace presum::blame {

void Usual::add(double value) {
  if (!std::isfinite(value)) return;
  if (values_.size() < kUsualSteps) {
    values_.push_back(static_cast<float>(value));
    return;
  }
  values_[next_++ % kUsualSteps] = static_cast<float>(value);
}

double Usual::median() const {
  if (values_.empty()) return kNaN;
  std::vector<float> sorted = values_;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>((sorted.size() - 1) / 2);
  std::ranges::nth_element(sorted, middle);
  return *middle;
}

}  // namespace presum::blame
