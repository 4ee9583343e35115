// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "presum/records.h"

// Decides which backward passes of one model on one rank make a step. docs/step.md has the same
// tables.
namespace presum::step {

// The state of the window: the passes since the last reduction or zeroing.
enum class State : std::uint8_t {
  kEmpty,     // no pass has ended
  kPass,      // a pass that does not reduce is under way
  kReducing,  // a pass that reduces is under way
  kWindow,    // passes have ended, but were not reduced
  kReduced,   // the reducing pass has ended; the step is open
};

enum class Event : std::uint8_t {
  kForward,       // a forward pass outside of any backward pass
  kPass,          // a pass that does not reduce begins
  kReducingPass,  // a pass that reduces begins
  kPassEnd,       // the pass under way has ended
  // The pass under way has ended, but its reduction waits for gradients of another pass.
  kPartEnd,
  kReduction,      // gradients are handed over for reduction, outside of a pass or in one
  kZeroed,         // the accumulated gradients were observed to be zeroed
  kOptimizerStep,  // the model's optimizer has stepped
  kClosed,         // the recording ends
};

// The effects of an event, applied in this order.
enum Action : std::uint8_t {
  kNothing = 0,
  kFail = 1,       // the pass under way has failed; part of it may be in the window
  kEnd = 2,        // the open step ends
  kUnreduced = 4,  // the window is a step that was not reduced
  kDrop = 8,       // the window is discarded
  kNumber = 16,    // a reduction is counted
  kTakeBack = 32,  // the last counted reduction is uncounted
  kCount = 64,     // the pass is counted in its window
};

struct Transition {
  State to;
  std::uint8_t actions;
};
Transition transition(State from, Event event);

// A step that has ended.
struct Ended {
  StepNumber number;
  std::uint32_t passes = 0;
  bool whole = true;  // none of its passes failed
};

// The current state and its counts. Not synchronized.
class Machine {
 public:
  State state() const { return state_; }
  // Whether passes have ended since the last reduction or zeroing.
  bool in_window() const { return state_ == State::kWindow; }
  // The number of passes that have ended in the window.
  std::uint32_t passes() const { return passes_; }
  // The number of reduced and unreduced steps so far, including the open one.
  std::uint64_t steps() const { return next_.reductions + next_.unreduced; }
  std::uint64_t unreduced() const { return next_.unreduced; }
  // The number of windows that ended without a step, including those with only failed passes.
  std::uint64_t windows_left() const { return windows_left_; }
  // The number of the step under way or open, once it is known to be reduced; before that, the
  // number that the window gets if it ends unreduced.
  StepNumber number() const;
  // The number that the next window gets if it ends unreduced.
  StepNumber next() const { return next_; }
  // The number of the step that the next reduction ends.
  StepNumber next_reduced() const;

  // Calls `ended` with each step that the event ends.
  template <class OnEnd>
  void on(Event event, OnEnd&& ended) {
    const auto [to, actions] = transition(state_, event);
    if ((actions & kFail) != 0) whole_ = false;
    if ((actions & kEnd) != 0) end(ended);
    if ((actions & kUnreduced) != 0) end_unreduced(ended);
    if ((actions & kDrop) != 0) drop();
    if ((actions & kNumber) != 0) take_number();
    if ((actions & kTakeBack) != 0) next_ = before_;
    if ((actions & kCount) != 0) ++passes_;
    state_ = to;
  }
  // For a program that numbers its own steps: the next reduction has this number.
  void set_reductions(std::uint64_t reductions) { next_.reductions = reductions; }

 private:
  template <class OnEnd>
  void end(OnEnd& ended) {
    const Ended step{open_, passes_, whole_};
    forget_window();
    ended(step);
  }
  template <class OnEnd>
  void end_unreduced(OnEnd& ended) {
    if (passes_ == 0) return drop();
    const Ended step{next_, passes_, whole_};
    ++next_.window;
    ++next_.unreduced;
    forget_window();
    ended(step);
  }
  void drop();
  void take_number();
  void forget_window() {
    passes_ = 0;
    whole_ = true;
  }

  State state_ = State::kEmpty;
  StepNumber next_{.reductions = 0, .window = 0, .unreduced = 0};
  StepNumber open_;
  StepNumber before_;  // next_ as it was before the last counted reduction
  std::uint32_t passes_ = 0;
  bool whole_ = true;
  std::uint64_t windows_left_ = 0;
};

}  // namespace presum::step
