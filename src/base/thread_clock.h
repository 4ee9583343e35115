// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace presum::base {

// Times of the calling thread, in seconds since it started.
struct ThreadTimes {
  double processor = 0;  // on a processor; NaN if the system does not report it
  double queued = 0;     // runnable while no processor was free; NaN except on Linux
};

// Takes a few microseconds. Thread-safe.
ThreadTimes thread_times();

}  // namespace presum::base
