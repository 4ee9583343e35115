// SPDX-License-Identifier: Apache-2.0
#include "step/phases.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace presum::step {
namespace {

// The member of a micro-batch that holds this phase; null if the phase has none.
float* part_of(MicroBatchTimes& micro, Phase phase) {
  switch (phase) {
    case Phase::kData:
      return &micro.data;
    case Phase::kForward:
      return &micro.forward;
    case Phase::kBackward:
      return &micro.backward;
    default:
      return nullptr;
  }
}

}  // namespace

void Phases::add(Phase phase, double seconds) {
  times_.of(phase) += seconds;
  if (micro_.empty() || micro_.size() > kMicroTimesMax) return;
  if (float* part = part_of(micro_.back(), phase)) *part += static_cast<float>(seconds);
}

// Adds the time since the last event to the phase under way, or to `gap` if none is.
void Phases::enter(std::optional<Phase> phase, const Reading& at, Phase gap) {
  const double passed = std::max(0.0, at.now - since_.now);
  const double waited = std::clamp(at.waited - since_.waited, 0.0, passed);
  since_ = at;
  if (begun_) {
    times_.of(Phase::kReduction) += waited;
    add(under_way_.value_or(gap), passed - waited);
  }
  under_way_ = phase;
  optimizer_.reset();
}

void Phases::forward(const Reading& at) {
  if (!under_way_) {
    if (begun_ && new_micro_ && micro_.size() <= kMicroTimesMax) micro_.push_back({0, 0, 0});
    new_micro_ = false;
  }
  const Phase gap = evaluated_ ? Phase::kRest : Phase::kData;
  in_closure_ = begin_optimizer(gap) || in_closure_;
  enter(Phase::kForward, at, gap);
  evaluated_ = false;
}

// In a step with a closure, as in Lightning's loop, the step's last pass runs inside the optimizer
// step.
void Phases::optimizer_begins(const Reading& at) {
  if (under_way_) return enter(Phase::kOptimizer, at);
  if (!optimizer_) optimizer_ = at;  // if already set, this optimizer is called by another one
}

// Starts the optimizer phase at the time at which the optimizer began after a gap. Returns whether
// it started one.
bool Phases::begin_optimizer(Phase gap) {
  const auto begun = std::exchange(optimizer_, std::nullopt);
  if (begun) enter(Phase::kOptimizer, *begun, gap);
  return begun.has_value();
}

void Phases::optimizer_ends(const Reading& at) {
  begin_optimizer();
  enter(std::nullopt, at, std::exchange(in_closure_, false) ? Phase::kOptimizer : Phase::kRest);
}

void Phases::on(Mark mark, const Reading& at) {
  switch (mark) {
    case Mark::kEvaluates:
      evaluated_ = true;
      return;
    case Mark::kForward:
      return forward(at);
    case Mark::kBackward:
      return enter(Phase::kBackward, at);
    case Mark::kPassEnds:
      new_micro_ = true;
      return enter(std::nullopt, at);
    case Mark::kOptimizerBegins:
      return optimizer_begins(at);
    case Mark::kOptimizerEnds:
      return optimizer_ends(at);
    case Mark::kReduced:
    case Mark::kStepEnds:
      return;
  }
}

StepTimes Phases::end(const Reading& at) {
  begin_optimizer();
  enter(under_way_, at);
  StepTimes out = std::exchange(times_, {});
  if (micro_.size() > kMicroTimesMax) micro_.pop_back();
  if (micro_.size() > 1) out.micro = micro_;
  micro_.clear();
  times_.seconds.fill(0);
  begun_ = new_micro_ = true;
  return out;
}

StepTimes replay(std::span<const Marked> marks) {
  const auto is_end = [](const Marked& m) { return m.mark == Mark::kStepEnds; };
  const bool known =
      std::ranges::all_of(marks, [](const Marked& m) { return std::isfinite(m.at); });
  const bool ascend = std::ranges::is_sorted(marks, {}, &Marked::at);
  if (marks.size() < 2 || !known || !ascend || !is_end(marks.front()) || !is_end(marks.back()))
    return {};
  Phases phases;
  double waited = 0;
  double passed = marks.front().at;  // when the last pass ended
  static_cast<void>(phases.end({passed, 0}));
  for (const Marked& m : marks.subspan(1, marks.size() - 2)) {
    if (m.mark == Mark::kPassEnds) passed = m.at;
    if (m.mark == Mark::kReduced) waited += m.at - std::exchange(passed, m.at);
    phases.on(m.mark, {m.at, waited});
  }
  StepTimes out = phases.end({marks.back().at, waited});
  out.on_device = true;
  return out;
}

}  // namespace presum::step
