// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "base/thread_clock.h"
#include "presum/times.h"
#include "step/machine.h"
#include "step/phases.h"

namespace presum::step {

// The clocks of the thread that trains. Without them nothing is said of times.
struct Clocks {
  std::function<Reading()> reading;
  std::function<base::ThreadTimes()> thread;
};

// Reads the clocks at the events of a model, and tells whoever watches whether its training goes
// on. Not synchronized.
class Timing {
 public:
  Timing(Clocks clocks, std::uint32_t model_index)
      : clocks_(std::move(clocks)), model_index_(model_index) {}

  // REQUIRES: not kStepEnds; the machine as the event finds it.
  void on(Mark mark, const Machine& machine);
  // A run of the engine begins; `certain`: it is a pass of this model. Else it is taken for one
  // where a forward pass came before.
  void backward(const Machine& machine, bool certain) {
    if (certain || phases_.in_forward()) on(Mark::kBackward, machine);
  }
  // `matters`: the step that ends is recorded, or the next one may be. Else the thread's own
  // clocks, which cost a file, are left alone.
  StepTimes end(bool matters);

 private:
  Reading now() const { return clocks_.reading ? clocks_.reading() : Reading{}; }

  Clocks clocks_;
  std::uint32_t model_index_;
  Phases phases_;
  base::ThreadTimes thread_;  // when the last step ended; NaN where that did not matter
};

}  // namespace presum::step
