// SPDX-License-Identifier: Apache-2.0
#include "step/timing.h"

#include <cmath>
#include <utility>

#include "step/activity.h"
#include "step/waits.h"

namespace presum::step {

namespace {

// The phase that follows a mark, as far as it is known at that time.
Phase after(Mark mark, const Machine& machine) {
  switch (mark) {
    case Mark::kForward:
      return Phase::kForward;
    case Mark::kBackward:
      return Phase::kBackward;
    case Mark::kPassEnds:
      return machine.state() == State::kReducing ? Phase::kReduction : Phase::kData;
    case Mark::kOptimizerBegins:
      return Phase::kOptimizer;
    case Mark::kOptimizerEnds:
      return Phase::kData;
    default:
      return Phase::kRest;
  }
}

}  // namespace

void Timing::on(Mark mark, const Machine& machine) {
  // A generation evaluates often, and its passes need no clock.
  const Reading at = mark == Mark::kEvaluates ? Reading{} : now();
  // A thread that begins a forward pass is not waiting for other ranks.
  if (mark == Mark::kForward && clocks_.reading) waits().abandon(at.now);
  phases_.on(mark, at);
  activity().event(model_index_, machine.number().reductions, machine.passes(),
                   after(mark, machine));
}

StepTimes Timing::end(bool matters) {
  if (!clocks_.reading) return {};
  StepTimes out = phases_.end(now());
  const base::ThreadTimes thread = matters ? clocks_.thread() : base::ThreadTimes{NAN, NAN};
  const base::ThreadTimes before = std::exchange(thread_, thread);
  if (out.known()) {
    out.processor = thread_.processor - before.processor;
    out.queued = thread_.queued - before.queued;
  }
  return out;
}

}  // namespace presum::step
