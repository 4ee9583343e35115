// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "presum/times.h"

namespace presum::step {

// What a thread's clocks show, in seconds from any start.
struct Reading {
  double now = 0;
  double waited = 0;  // of `now`, how much it has waited for other workers so far
};

// The time of one worker's steps, phase by phase. It has no clock: every event brings its reading.
// Events may come in any order and be left out; time that no event has named is kRest. Not
// synchronised.
class Phases {
 public:
  // A forward pass that does not train.
  void evaluates() { evaluated_ = true; }
  void forward(const Reading& at);   // a training forward pass begins
  void backward(const Reading& at);  // a backward pass begins
  bool in_forward() const { return state_ == State::kForward; }
  void pass_ends(const Reading& at);  // all its own gradients are there
  void optimizer_begins(const Reading& at);
  void optimizer_ends(const Reading& at);
  // What the step that ends now took; what comes belongs to the next one. Unknown for the first
  // one, whose beginning nobody saw.
  StepTimes end(const Reading& at);

 private:
  // kGap: what it is depends on what comes next.
  enum class State : std::uint8_t { kGap, kForward, kBackward, kOptimizer };
  void leave(const Reading& at, Phase gap);
  void add(Phase phase, double seconds);

  StepTimes times_;
  State state_ = State::kGap;
  Reading since_;
  bool begun_ = false;  // the step's beginning was seen
  bool evaluated_ = false;
  bool new_micro_ = true;  // the next forward pass begins a micro-batch
  std::vector<MicroBatchTimes> micro_;
};

// What happened on a device, in order, in seconds of its clock from any start.
enum class Mark : std::uint8_t {
  kStepEnds = 0,  // the first and the last of a step's marks
  kEvaluates = 1,
  kForward = 2,
  kBackward = 3,
  kPassEnds = 4,
  kReduced = 5,  // what was waited for after kPassEnds is there
  kOptimizerBegins = 6,
  kOptimizerEnds = 7,
};
struct Marked {
  Mark mark = Mark::kStepEnds;
  double at = 0;
};
// Unknown where the marks do not begin and end with kStepEnds, a time is not a number, or they go
// back (they are of several streams).
StepTimes replay(std::span<const Marked> marks);

}  // namespace presum::step
