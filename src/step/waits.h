// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "step/phases.h"

namespace presum::step {

// How long the calling thread has waited for other ranks, in reductions and collectives, as far as
// reported. Covers all models, because a wait for one model's reduction is not another model's own
// time. One instance per thread. `now`: a reading of a monotonic clock.
class Waits {
 public:
  // Waits may be nested; only the outermost counts.
  void begin(double now);
  void end(double now);
  // Ends waits that an exception left open.
  void abandon(double now);
  // The total so far, including a wait under way.
  double seconds(double now) const;

 private:
  int depth_ = 0;
  double since_ = 0;
  double sum_ = 0;
};

// Returns the calling thread's instance.
Waits& waits();

// Reads the monotonic clock and the calling thread's waits.
Reading read_clock();

}  // namespace presum::step
