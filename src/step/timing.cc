// SPDX-License-Identifier: Apache-2.0
#include "step/timing.h"

#include <cmath>
#include <utility>

#include "step/activity.h"
#include "step/waits.h"

namespace presum::step {

void Timing::tell(const Machine& machine, Phase phase) const {
  activity().event(module_, machine.number().reductions, machine.passes(), phase);
}

void Timing::evaluates(const Machine& machine) {
  phases_.evaluates();
  tell(machine, Phase::kRest);
}

// Whoever begins a forward pass waits for nobody.
void Timing::forward(const Machine& machine) {
  const Reading at = now();
  if (clocks_.reading) waits().abandon(at.now);
  phases_.forward(at);
  tell(machine, Phase::kForward);
}

void Timing::backward(const Machine& machine, bool certain) {
  if (!certain && !phases_.in_forward()) return;
  phases_.backward(now());
  tell(machine, Phase::kBackward);
}

void Timing::pass_ends(const Machine& machine) {
  phases_.pass_ends(now());
  tell(machine, machine.state() == State::kReducing ? Phase::kReduction : Phase::kData);
}

void Timing::optimizer_begins(const Machine& machine) {
  phases_.optimizer_begins(now());
  tell(machine, Phase::kOptimizer);
}

void Timing::optimizer_ends(const Machine& machine) {
  phases_.optimizer_ends(now());
  tell(machine, Phase::kData);
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
