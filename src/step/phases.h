// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "presum/times.h"

namespace presum::step {

// Readings of a thread's clocks, in seconds from an arbitrary start.
struct Reading {
  double now = 0;
  double waited = 0;  // how much of `now` was spent waiting for other ranks
};

// An event in a step.
enum class Mark : std::uint8_t {
  kStepEnds = 0,
  kEvaluates = 1,  // a forward pass outside of training
  kForward = 2,    // a training forward pass begins
  kBackward = 3,   // a backward pass begins
  kPassEnds = 4,   // all of the rank's own gradients are there
  kReduced = 5,    // on a device: what the step waited for after kPassEnds is there
  kOptimizerBegins = 6,
  kOptimizerEnds = 7,
};

// The time of one rank's steps, phase by phase. It has no clock: each event brings its reading.
// Events may come in any order and may be missing; time that no event accounts for is kRest. Not
// synchronized.
class Phases {
 public:
  // REQUIRES: not kStepEnds. kReduced has no effect here: its wait is in the reading.
  void on(Mark mark, const Reading& at);
  bool in_forward() const { return under_way_ == Phase::kForward; }
  // Returns the times of the step that ends now; later events belong to the next step. Unknown for
  // the first step, whose beginning was not seen.
  StepTimes end(const Reading& at);

 private:
  void enter(std::optional<Phase> phase, const Reading& at, Phase gap = Phase::kRest);
  void forward(const Reading& at);
  void optimizer_begins(const Reading& at);
  bool begin_optimizer(Phase gap = Phase::kRest);
  void optimizer_ends(const Reading& at);
  void add(Phase phase, double seconds);

  StepTimes times_;
  std::optional<Phase> under_way_;  // empty: a gap, whose phase depends on the next event
  Reading since_;
  // An optimizer step began in a gap; a pass in its closure may follow.
  std::optional<Reading> optimizer_;
  bool in_closure_ = false;  // a pass ran in the optimizer's closure
  bool begun_ = false;       // the beginning of the step was seen
  bool evaluated_ = false;
  bool new_micro_ = true;  // the next forward pass begins a micro-batch
  std::vector<MicroBatchTimes> micro_;
};

// An event on a device, in seconds of the device's clock from an arbitrary start. A step's marks
// are in order; the first and the last are kStepEnds.
struct Marked {
  Mark mark = Mark::kStepEnds;
  double at = 0;
};
// Unknown if the marks do not begin and end with kStepEnds, if a time is not finite, or if times go
// backward because the marks are from several streams.
StepTimes replay(std::span<const Marked> marks);

}  // namespace presum::step
