// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

#include "base/thread_clock.h"
#include "presum/times.h"
#include "step/machine.h"
#include "step/phases.h"

namespace presum::step {

// The clocks of the training thread. Without them, times are unknown.
struct Clocks {
  std::function<Reading()> reading;
  std::function<base::ThreadTimes()> thread;
};

// Reads the clocks at a model's events and updates activity(). Not synchronized.
class Timing {
 public:
  Timing(Clocks clocks, std::uint32_t model_index)
      : clocks_(std::move(clocks)), model_index_(model_index) {}

  // REQUIRES: not kStepEnds; the machine as it is before the event.
  void on(Mark mark, const Machine& machine);
  // A run of the autograd engine begins. `certain`: it is a pass of this model. If not certain, it
  // counts as one if a forward pass came before.
  void backward(const Machine& machine, bool certain) {
    if (certain || phases_.in_forward()) on(Mark::kBackward, machine);
  }
  // `matters`: the step that ends is recorded, or the next one may be. If not, the thread's own
  // clocks are not read, because that means reading a file.
  StepTimes end(bool matters);

 private:
  Reading now() const { return clocks_.reading ? clocks_.reading() : Reading{}; }

  Clocks clocks_;
  std::uint32_t model_index_;
  Phases phases_;
  base::ThreadTimes thread_;  // at the end of the last step; NaN if that step did not matter
};

}  // namespace presum::step
