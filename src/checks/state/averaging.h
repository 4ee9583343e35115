// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "presum/step_record.h"

namespace presum::checks {

// Whether the ranks' parameters differ and become equal again at equal distances: local SGD, whose
// ranks take steps of their own and average their parameters now and then. Not synchronized.
class Averaging {
 public:
  // REQUIRES: ascending steps.
  void see(const StepRecord& record);
  // Steps from one average to the next, once there were three of them at that distance; 0 before,
  // and from the first that was not made.
  std::uint64_t interval() const { return times_ >= kTimes ? distance_ : 0; }

 private:
  static constexpr std::uint64_t kTimes = 3;

  bool apart_ = false;  // they were, since they were equal last
  std::uint64_t equal_at_ = 0;
  std::uint64_t distance_ = 0;
  std::uint64_t times_ = 0;
};

}  // namespace presum::checks
