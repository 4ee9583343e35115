// SPDX-License-Identifier: Apache-2.0
#include "step/machine.h"

#include <array>

namespace presum::step {
namespace {

using enum State;

using Row = std::array<Transition, static_cast<std::size_t>(Event::kClosed) + 1>;
// Rows by state, columns by event, both in the order of their enumerators.
constexpr std::array<Row, static_cast<std::size_t>(State::kReduced) + 1> kTable = {{
    // kEmpty
    {{{kEmpty, kNothing},
      {kPass, kNothing},
      {kReducing, kNumber},
      {kEmpty, kNothing},
      {kEmpty, kNothing},
      {kReduced, kNumber},
      {kEmpty, kNothing},
      {kEmpty, kNothing},
      {kEmpty, kNothing}}},
    // kPass
    {{{kWindow, kFail},
      {kPass, kFail},
      {kReducing, kFail | kNumber},
      {kWindow, kCount},
      {kWindow, kCount},
      {kReduced, kNumber | kCount},
      {kEmpty, kDrop},
      {kPass, kNothing},
      {kEmpty, kDrop}}},
    // kReducing
    {{{kWindow, kFail},
      {kPass, kFail},
      {kReducing, kFail | kNumber},
      {kReduced, kCount},
      {kWindow, kTakeBack | kCount},
      {kReduced, kCount},
      {kEmpty, kDrop},
      {kReducing, kNothing},
      {kEmpty, kDrop}}},
    // kWindow
    {{{kWindow, kNothing},
      {kPass, kNothing},
      {kReducing, kNumber},
      {kWindow, kNothing},
      {kWindow, kNothing},
      {kReduced, kNumber},
      {kEmpty, kDrop},
      {kEmpty, kUnreduced},
      {kEmpty, kDrop}}},
    // kReduced
    {{{kEmpty, kEnd},
      {kPass, kEnd},
      {kReducing, kEnd | kNumber},
      {kReduced, kNothing},
      {kReduced, kNothing},
      {kReduced, kEnd | kNumber},
      {kReduced, kNothing},
      {kEmpty, kEnd},
      {kEmpty, kEnd}}},
}};

}  // namespace

Transition transition(State from, Event event) {
  return kTable[static_cast<std::size_t>(from)][static_cast<std::size_t>(event)];
}

StepNumber Machine::number() const {
  return state_ == State::kReducing || state_ == State::kReduced ? open_ : next_;
}

StepNumber Machine::next_reduced() const {
  return {.reductions = next_.reductions, .unreduced = next_.unreduced};
}

// A dropped window counts among the windows since the last reduction, so a rank whose loss scaler
// skips a step keeps the same numbers as the other ranks.
void Machine::drop() {
  ++windows_left_;
  if (passes_ > 0) ++next_.window;
  forget_window();
}

void Machine::take_number() {
  before_ = next_;
  open_ = next_reduced();
  ++next_.reductions;
  next_.window = 0;
}

}  // namespace presum::step
