// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "presum/records.h"

// Which backward passes of one model on one worker make a step: docs/step.md, whose tables are
// those of this file.
namespace presum::step {

// Of the window: the passes since the last reduction or zeroing.
enum class State : std::uint8_t {
  kEmpty,     // no pass has ended
  kPass,      // a pass that does not reduce is under way
  kReducing,  // one that does
  kWindow,    // passes have ended, and were not reduced
  kReduced,   // its reducing pass has ended: the step is open
};

enum class Event : std::uint8_t {
  kForward,        // a forward pass outside of any backward pass
  kPass,           // a pass begins that does not reduce
  kReducingPass,   // one that does
  kPassEnd,        // the pass under way has ended
  kPartEnd,        // likewise, but what reduces waits for gradients of another one
  kReduction,      // gradients are handed over to be reduced, outside of a pass or in one
  kZeroed,         // what was accumulated was seen to be zeroed
  kOptimizerStep,  // of the model's optimizer
  kClosed,         // the recording ends
};

// What an event does, in this order.
enum Action : std::uint8_t {
  kNothing = 0,
  kFail = 1,       // the pass under way has failed: part of it may be in the window
  kEnd = 2,        // the open step ends
  kUnreduced = 4,  // the window is a step that was not reduced
  kDrop = 8,       // the window is discarded
  kNumber = 16,    // a reduction is counted
  kTakeBack = 32,  // the reduction that was counted last is not
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
  bool whole = true;  // no pass of it failed on the way
};

// The state and its counts. Not synchronized.
class Machine {
 public:
  State state() const { return state_; }
  // Passes have ended since the last reduction or zeroing.
  bool in_window() const { return state_ == State::kWindow; }
  // Passes that have ended in the window.
  std::uint32_t passes() const { return passes_; }
  // Reduced and unreduced steps so far; the open one counts.
  std::uint64_t steps() const { return next_.reductions + next_.unreduced; }
  std::uint64_t unreduced() const { return next_.unreduced; }
  // Windows that were left without a step; those of failed passes alone, too.
  std::uint64_t windows_left() const { return windows_left_; }
  // The number of the step under way or open, once it is known to be reduced; else the number that
  // the window has if it ends unreduced.
  StepNumber number() const;
  // The number that the coming window has if it ends unreduced.
  StepNumber next() const { return next_; }
  // The number of the step that the next reduction ends.
  StepNumber next_reduced() const;

  // `ended` is called with each step that the event ends.
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
  // A program that numbers its steps itself: the next reduction is its `reductions`-th.
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
  StepNumber before_;  // next_, before the reduction that was counted last
  std::uint32_t passes_ = 0;
  bool whole_ = true;
  std::uint64_t windows_left_ = 0;
};

}  // namespace presum::step
