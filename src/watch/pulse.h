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

// Where the program is, as its interpreter tells.
struct Place {
  std::string collective;
  std::string site;
  std::string stack;
  std::string recorder;
};

// What a process says of itself: the last event of its training, and how long ago that was. Pure
// but for the activity that it reads. Not synchronized.
class Pulse {
 public:
  struct Options {
    Identity identity;
    std::string host;
    double period = 2;
    double stall_seconds = 60;
  };
  Pulse(Options options, Seconds now) : options_(std::move(options)), moved_(now), beaten_(now) {}

  // Whether its events grow; to be asked a few times a second, for `still` is as exact as that.
  void look(const step::Activity& activity, Seconds now);
  Packet beat(const step::Activity& activity, const ThreadState& thread, Place place,
              bool lock_held, Seconds now);
  // Since the last event.
  double still(Seconds now) const { return (now - moved_).count(); }

 private:
  Options options_;
  std::uint64_t events_ = 0;
  Seconds moved_;
  Seconds beaten_;
  double longest_ = 0;
  double processor_ = 0;  // of the thread, at the last beat
};

}  // namespace presum::watch
