// SPDX-License-Identifier: Apache-2.0
#include "step/waits.h"

#include "base/clock.h"
#include "step/activity.h"

namespace presum::step {

void Waits::begin(double now) {
  if (depth_++ > 0) return;
  since_ = now;
  activity().waits(true);
}

void Waits::end(double now) {
  if (depth_ == 0) return;  // it began before recording did
  if (--depth_ > 0) return;
  sum_ += now - since_;
  activity().waits(false);
}

void Waits::abandon(double now) {
  if (depth_ == 0) return;
  depth_ = 1;
  end(now);
}

double Waits::seconds(double now) const { return depth_ > 0 ? sum_ + now - since_ : sum_; }

Waits& waits() {
  thread_local Waits of_thread;
  return of_thread;
}

Reading read_clock() {
  const double now = monotonic_now().count();
  return {now, waits().seconds(now)};
}

Activity& activity() {
  static Activity of_process;
  return of_process;
}

}  // namespace presum::step
