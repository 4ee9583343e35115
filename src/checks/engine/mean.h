// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace presum::checks {

// The mean of the finite numbers in a sequence (Welford 1962).
class Mean {
 public:
  void add(double x) {
    if (!std::isfinite(x)) return;
    ++count_;
    const double off = x - mean_;
    mean_ += off / static_cast<double>(count_);
    squares_ += off * (x - mean_);
  }

  std::uint64_t count() const { return count_; }
  // NaN for none.
  double value() const { return count_ < 1 ? kUnknown : mean_; }
  // Of a single number; NaN for fewer than two.
  double deviation() const {
    return count_ < 2 ? kUnknown : std::sqrt(squares_ / static_cast<double>(count_ - 1));
  }
  // Of the mean, for independent numbers; NaN for fewer than two.
  double error() const { return deviation() / std::sqrt(static_cast<double>(count_)); }

 private:
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  std::uint64_t count_ = 0;
  double mean_ = 0;
  double squares_ = 0;
};

}  // namespace presum::checks
