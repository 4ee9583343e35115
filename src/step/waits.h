// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "step/phases.h"

namespace presum::step {

// What the calling thread has waited for other workers, in reductions and collectives, as far as
// anybody tells: of all models together, for what one waits is no other's own time. Each thread for
// itself. `now`: the reading of a monotonic clock.
class Waits {
 public:
  // May be nested: what is inside counts once.
  void begin(double now);
  void end(double now);
  // What began and was never ended, because of an exception, ends.
  void abandon(double now);
  // So far, what is under way included.
  double seconds(double now) const;

 private:
  int depth_ = 0;
  double since_ = 0;
  double sum_ = 0;
};

// Those of the calling thread.
Waits& waits();

// The monotonic clock, and the waits of the calling thread.
Reading read_clock();

}  // namespace presum::step
