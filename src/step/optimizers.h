// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <utility>

#include "presum/records.h"

namespace presum::step {

// Counts a model's optimizer steps. Steps of different optimizers after one pass count as one.
class Optimizers {
 public:
  // `one`: a single optimizer steps all parameters.
  Optimizers(bool known, bool one) : known_(known), one_(one) {}

  bool known() const { return known_; }
  bool in_step() const { return in_step_; }
  std::uint64_t steps() const { return steps_; }

  // What happened to a gradient that is still there; `seen`: `.grad` was examined.
  StepUse use_of(bool seen) const {
    if (in_step_) return StepUse::kUsed;
    return known_ && seen ? StepUse::kKept : StepUse::kUnknown;
  }
  void begin() { in_step_ = true; }
  void end(std::uint64_t which) {
    in_step_ = false;
    if (stepped_.empty() || stepped_.contains(which)) {
      ++steps_;
      stepped_.clear();
    }
    stepped_.insert(which);
  }
  // Called at the first pass of a window. Returns whether an optimizer step has taken the gradient
  // of all parameters from the previous window.
  bool window_begins() { return std::exchange(steps_before_, steps_) < steps_ && one_; }
  void fail() { in_step_ = false; }  // the step raised, and torch calls no hook then
  void pass_ended() { stepped_.clear(); }

 private:
  bool known_;
  bool one_;
  bool in_step_ = false;
  std::uint64_t steps_ = 0;
  std::uint64_t steps_before_ = 0;   // steps_ when the previous window began
  std::set<std::uint64_t> stepped_;  // optimizers that have stepped since the last pass
};

}  // namespace presum::step
