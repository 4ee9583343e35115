// SPDX-License-Identifier: Apache-2.0
#include "watch/pulse.h"

#include <algorithm>
#include <utility>

namespace presum::watch {

void Pulse::look(const step::Activity& activity, Seconds now) {
  const std::uint64_t events = activity.events();
  if (events == events_) return;
  // Before the first event there is no training, so this time does not count.
  if (events_ > 0) longest_ = std::max(longest_, still(now));
  events_ = events;
  moved_ = now;
}

Packet Pulse::beat(const step::Activity& activity, const ThreadState& thread, Place place,
                   bool lock_held, Seconds now) {
  look(activity, now);
  const double passed = (now - std::exchange(beaten_, now)).count();
  const double used = thread.processor - std::exchange(processor_, thread.processor);
  packet::Beat out{.header = {.identity = options_.identity}};
  out.header.identity.model_index = activity.model_index();
  out.beat = {.events = events_,
              .step = activity.step(),
              .micro_batch = activity.micro_batch(),
              .phase = activity.phase(),
              .waiting = activity.waiting(),
              .lock_held = lock_held,
              .thread = thread.state,
              .layer = activity.layer(),
              .still = std::max(0.0, still(now)),
              .longest = longest_,
              .processor = passed > 0 ? used / passed : 0,
              .period = options_.period,
              .stall_seconds = options_.stall_seconds,
              .host = options_.host,
              .collective = std::move(place.collective),
              .site = std::move(place.site),
              .stack = std::move(place.stack),
              .recorder = std::move(place.recorder)};
  return packet::encode(out);
}

}  // namespace presum::watch
