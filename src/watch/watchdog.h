// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "presum/packet.h"
#include "watch/pulse.h"
#include "watch/store_push.h"

namespace presum::watch {

// Tells where this process stands: by the interpreter's background thread as long as that beats,
// and by a thread of its own, which needs no lock, once that has not for three periods.
//
// Thread-safety: all methods, from any thread. A process that was forked has none of its threads:
// there it does nothing.
class Watchdog {
 public:
  struct Options {
    Pulse::Options pulse;
    std::uint64_t thread = 0;  // the one that trains, as the system numbers it
    MonotonicClock clock = monotonic_now;
    // Where a line is said of a process that nobody can be told of otherwise; empty: nowhere. On
    // its own thread.
    std::function<void(const std::string&)> say;
  };
  explicit Watchdog(Options options);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog();
  // Nobody will beat any more. Waits for its thread, which may be sending: two seconds for each
  // address of the store. A second call does nothing.
  void stop();

  // From the interpreter: it answers.
  Packet beat(Place place);
  // Seconds since the training's last event.
  double still() const;
  // Where the watchdog's own thread sends. Until then, or with no host (the process that records),
  // it says a line once the training has not moved for `stall_seconds`.
  void reaches(StoreAddress address, Announcement announced);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace presum::watch
