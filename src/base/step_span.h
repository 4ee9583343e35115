// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

namespace presum::base {

// Counts the lost steps of one model in one segment. Not synchronized.
class StepSpan {
 public:
  // This many steps at the end may lack packets, because those may still be under way.
  static constexpr std::uint64_t kUnderWay = 5;

  // `whole`: the step has all the packets that could have arrived by then. Ignores a step that is
  // not above the previous one.
  void add(std::uint64_t step, bool whole = true) {
    if (count_ == 0) {
      first_ = step;
    } else if (step <= last_) {
      return;
    } else {
      stride_ = std::min(stride_, step - last_);
    }
    last_ = step;
    ++count_;
    if (whole) partial_ += std::exchange(at_the_end_, 0);
    at_the_end_ += whole ? 0 : 1;
  }
  // Returns whether every step is recorded, as far as the distances between steps show.
  bool every_one() const { return count_ < 2 || stride_ == 1; }
  // Returns the number of missing steps between the first and the last, if every n-th step is
  // recorded and n is the smallest distance between two steps, plus the number of partial steps.
  std::uint64_t lost() const {
    return absent() + partial_ + (at_the_end_ > kUnderWay ? at_the_end_ : 0);
  }

 private:
  std::uint64_t absent() const {
    return count_ < 2 ? 0 : (last_ - first_) / stride_ - (count_ - 1);
  }

  std::uint64_t first_ = 0;
  std::uint64_t last_ = 0;
  std::uint64_t count_ = 0;
  std::uint64_t partial_ = 0;     // followed by a whole step
  std::uint64_t at_the_end_ = 0;  // partial steps at the end
  std::uint64_t stride_ = std::numeric_limits<std::uint64_t>::max();
};

}  // namespace presum::base
