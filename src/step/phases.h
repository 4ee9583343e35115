// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "presum/times.h"

namespace presum::step {

// What a thread's clocks show, in seconds from any start.
struct Reading {
  double now = 0;
  double waited = 0;  // of `now`, how much it has waited for other workers so far
};

// What happens in a step.
enum class Mark : std::uint8_t {
  kStepEnds = 0,
  kEvaluates = 1,  // a forward pass that does not train
  kForward = 2,    // a training forward pass begins
  kBackward = 3,   // a backward pass begins
  kPassEnds = 4,   // all its own gradients are there
  kReduced = 5,    // on a device: what was waited for after kPassEnds is there
  kOptimizerBegins = 6,
  kOptimizerEnds = 7,
};

// The time of one worker's steps, phase by phase. It has no clock: every event brings its reading.
// Events may come in any order and be left out; time that no event has named is kRest. Not
// synchronized.
class Phases {
 public:
  // REQUIRES: not kStepEnds. kReduced says nothing by itself: the reading has the wait.
  void on(Mark mark, const Reading& at);
  bool in_forward() const { return under_way_ == Phase::kForward; }
  // What the step that ends now took; what comes belongs to the next one. Unknown for the first
  // one, whose beginning nobody saw.
  StepTimes end(const Reading& at);

 private:
  void enter(std::optional<Phase> phase, const Reading& at, Phase gap = Phase::kRest);
  void forward(const Reading& at);
  void optimizer_begins(const Reading& at);
  bool begin_optimizer(Phase gap = Phase::kRest);
  void optimizer_ends(const Reading& at);
  void add(Phase phase, double seconds);

  StepTimes times_;
  std::optional<Phase> under_way_;  // none: a gap, and what it is depends on what comes next
  Reading since_;
  std::optional<Reading> optimizer_;  // began in a gap: a pass in its closure may follow
  bool in_closure_ = false;           // a pass did
  bool begun_ = false;                // the step's beginning was seen
  bool evaluated_ = false;
  bool new_micro_ = true;  // the next forward pass begins a micro-batch
  std::vector<MicroBatchTimes> micro_;
};

// What happened on a device, in order, in seconds of its clock from any start. kStepEnds is the
// first and the last of a step's marks.
struct Marked {
  Mark mark = Mark::kStepEnds;
  double at = 0;
};
// Unknown where the marks do not begin and end with kStepEnds, a time is not a number, or they go
// back (they are of several streams).
StepTimes replay(std::span<const Marked> marks);

}  // namespace presum::step
