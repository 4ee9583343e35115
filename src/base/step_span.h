// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

namespace presum::base {

// The steps of one model in one segment: how many of them are lost. Not synchronized.
class StepSpan {
 public:
  // As many at the end may lack packets: those that were under way then.
  static constexpr std::uint64_t kUnderWay = 5;

  // `whole`: it lacks no packet that may still have been on the way. A step that is not above the
  // one before is ignored.
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
  // Whether no smaller part of all steps is recorded, as far as two of them say.
  bool every_one() const { return count_ < 2 || stride_ == 1; }
  // Steps between the first and the last that are not there, where one in every so many is recorded
  // as the smallest distance between two says; and those that are not whole.
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
  std::uint64_t partial_ = 0;     // and followed by a whole one
  std::uint64_t at_the_end_ = 0;  // partial ones
  std::uint64_t stride_ = std::numeric_limits<std::uint64_t>::max();
};

}  // namespace presum::base
