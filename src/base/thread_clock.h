// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace presum::base {

// Of the calling thread, in seconds since it began.
struct ThreadTimes {
  double processor = 0;  // on a processor; NaN where the system does not tell
  double queued = 0;  // ready to run while no processor was free; NaN likewise: Linux alone tells
};

// A few microseconds. Any thread, for itself.
ThreadTimes thread_times();

}  // namespace presum::base
