// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace presum::watch {

// A thread of this process as the operating system sees it.
struct ThreadState {
  char state = '?';        // R, S, D, T, ... (Linux); '?' if unknown, or if there is no such thread
  double processor = 0.0;  // seconds on a processor so far; NaN if unknown
};

// `thread`: its number in the system (gettid). Callable from any thread. Takes no interpreter lock.
ThreadState thread_state(std::uint64_t thread);

}  // namespace presum::watch
