// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>

namespace presum {

using Seconds = std::chrono::duration<double>;

// Returns seconds since an arbitrary start; never decreases. Injected to make timeouts testable.
using MonotonicClock = std::function<Seconds()>;

inline Seconds monotonic_now() { return std::chrono::steady_clock::now().time_since_epoch(); }

}  // namespace presum
