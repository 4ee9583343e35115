// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace presum::watch {

// A thread of this process as the system sees it.
struct ThreadState {
  char state = '?';        // R, S, D, T, ... (Linux); '?' where it is not told, or there is none
  double processor = 0.0;  // seconds on a processor so far; NaN likewise
};

// `thread`: its number in the system (gettid). Any thread. Needs no lock of an interpreter.
ThreadState thread_state(std::uint64_t thread);

}  // namespace presum::watch
