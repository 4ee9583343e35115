// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>
#include <utility>

#include "presum/records.h"

namespace presum::step {

// The steps of a model's optimizers: those of all of them after one pass count as one.
class Optimizers {
 public:
  // `one`: a single one steps all parameters.
  Optimizers(bool known, bool one) : known_(known), one_(one) {}

  bool known() const { return known_; }
  bool in_step() const { return in_step_; }
  std::uint64_t steps() const { return steps_; }

  // What becomes of a gradient that is still there; `seen`: somebody has looked.
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
  // The first pass of a window. Whether a step has taken the gradient of the window before, of all
  // parameters.
  bool window_begins() { return std::exchange(steps_before_, steps_) < steps_ && one_; }
  void fail() { in_step_ = false; }  // it raised: torch calls no hook
  void pass_ended() { stepped_.clear(); }

 private:
  bool known_;
  bool one_;
  bool in_step_ = false;
  std::uint64_t steps_ = 0;
  std::uint64_t steps_before_ = 0;   // when the window before began
  std::set<std::uint64_t> stepped_;  // since the last pass
};

}  // namespace presum::step
