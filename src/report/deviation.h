// SPDX-License-Identifier: Apache-2.0
// How far a worker's values lie from those of the other workers of its step.
#pragma once

#include <span>
#include <vector>

namespace presum::report {

// For one quantity over the steps of one run: z_i = (x_i - median of the others) / scale, where
// the scale is a running mean of the workers' spread (1.4826 times their median absolute deviation
// or, where most workers are equal, 1.2533 times their mean absolute deviation), so that it reads
// like a number of standard deviations. One thread at a time.
class Deviation {
 public:
  // One step's values, one per worker; NaN and Inf are left out of medians and yield NaN. NaN for
  // fewer than two finite values; 0 for a worker that equals the others' median but for rounding.
  std::vector<double> step(std::span<const double> values);

 private:
  double spread_ = 0;
  bool started_ = false;
};

}  // namespace presum::report
