// SPDX-License-Identifier: Apache-2.0
// How far a rank's values are from those of the other ranks at the same step.
#pragma once

#include <span>
#include <vector>

namespace presum::report {

// For one quantity over the steps of one run: z_i = (x_i - median of the others) / scale. The scale
// is a running mean of the ranks' spread (1.4826 times their median absolute deviation or, if that
// is 0, 1.2533 times their mean absolute deviation), so z reads like a number of standard
// deviations. One thread at a time.
class Deviation {
 public:
  // Takes one step's values, one per rank. NaN and Inf are left out of medians and yield NaN. All
  // results are NaN with fewer than two finite values. A rank that equals the others' median up to
  // rounding gets 0.
  std::vector<double> step(std::span<const double> values);

 private:
  double spread_ = 0;
  bool started_ = false;
};

}  // namespace presum::report
