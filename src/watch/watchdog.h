// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "presum/packet.h"
#include "watch/pulse.h"
#include "watch/store_push.h"

namespace presum::watch {

// Reports where this process is. The interpreter's background thread sends the heartbeats; when
// none has come for three periods, the watchdog's own thread sends them, without taking a lock of
// the interpreter.
//
// Thread-safety: all methods may be called from any thread. A forked process has none of these
// threads; there the watchdog does nothing.
class Watchdog {
 public:
  struct Options {
    Pulse::Options pulse;
    std::uint64_t thread = 0;  // the training thread, as the operating system numbers it
    MonotonicClock clock = monotonic_now;
    // Called with a line about this process if the line can reach no other process; empty: no line.
    // Called on the watchdog's own thread.
    std::function<void(const std::string&)> say;
  };
  explicit Watchdog(Options options);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog();
  // Stops the heartbeats. Waits for the watchdog's thread, which may be sending: two seconds for
  // each address of the store. A second call does nothing.
  void stop();

  // Called from the interpreter, which shows that it responds.
  Packet beat(Place place);
  // Seconds since the last event of the training.
  double still() const;
  // Sets where the watchdog's own thread sends. Without a host (on the recording process), the
  // thread instead calls `say` once the training has not progressed for `stall_seconds`. Before
  // this call it does neither.
  void reaches(StoreAddress address, Announcement announced);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace presum::watch
