// SPDX-License-Identifier: Apache-2.0
// What a number of a worker's steps usually is.
#pragma once

#include <cstddef>
#include <vector>

namespace presum::blame {

// The last values of something; those that are not finite do not count.
class Usual {
 public:
  void add(double value);
  // Their median, the lower of two; NaN where there are none.
  double median() const;

 private:
  std::vector<float> values_;  // a ring once it is full
  std::size_t next_ = 0;
};

}  // namespace presum::blame
