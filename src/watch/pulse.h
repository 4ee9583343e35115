// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "packet/packet.h"
#include "presum/stall.h"
#include "step/activity.h"
#include "watch/thread_state.h"

namespace presum::watch {

// Where the program is, as reported by its interpreter.
struct Place {
  std::string collective;
  std::string site;
  std::string stack;
  std::string recorder;
};

// Makes a process's heartbeats: the last event of its training, and the time since then. Pure
// except for the activity that it reads. Not synchronized.
class Pulse {
 public:
  struct Options {
    Identity identity;
    std::string host;
    double period = 2;
    double stall_seconds = 60;
  };
  Pulse(Options options, Seconds now) : options_(std::move(options)), moved_(now), beaten_(now) {}

  // Checks for new events. Call it a few times a second: this is the resolution of `still`.
  void look(const step::Activity& activity, Seconds now);
  Packet beat(const step::Activity& activity, const ThreadState& thread, Place place,
              bool lock_held, Seconds now);
  // Seconds since the last event.
  double still(Seconds now) const { return (now - moved_).count(); }

 private:
  Options options_;
  std::uint64_t events_ = 0;
  Seconds moved_;
  Seconds beaten_;
  double longest_ = 0;
  double processor_ = 0;  // of the thread, at the last heartbeat
};

}  // namespace presum::watch
