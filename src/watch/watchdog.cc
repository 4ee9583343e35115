// SPDX-License-Identifier: Apache-2.0
#include "watch/watchdog.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace presum::watch {
namespace {

constexpr double kPeriodsOfPatience = 3;
constexpr double kLooksPerPeriod = 4;

}  // namespace

struct Watchdog::State {
  explicit State(Options o)
      : options(std::move(o)), pulse(options.pulse, options.clock()), beaten(options.clock()) {}

  void work();
  void look(std::unique_lock<std::mutex>& lock);
  Packet beat(Place place, bool lock_held, Seconds now) {
    return pulse.beat(step::activity(), thread_state(options.thread), std::move(place), lock_held,
                      now);
  }

  Options options;
  pid_t process = getpid();
  std::mutex mutex;
  std::condition_variable ends;
  bool ended = false;
  Pulse pulse;
  Seconds beaten;  // by the interpreter
  Place last;      // that it told
  std::optional<StoreAddress> address;
  Announcement announced;
  bool said = false;
  std::thread thread;
};

void Watchdog::State::work() {
  const std::chrono::duration<double> pause(options.pulse.period / kLooksPerPeriod);
  std::unique_lock lock(mutex);
  while (!ends.wait_for(lock, pause, [&] { return ended; })) look(lock);
}

void Watchdog::State::look(std::unique_lock<std::mutex>& lock) {
  const Seconds now = options.clock();
  pulse.look(step::activity(), now);
  const double patience = kPeriodsOfPatience * options.pulse.period;
  if ((now - beaten).count() < patience || step::activity().events() == 0) return;
  if (address && !address->hosts.empty()) {
    beaten = now - Seconds(patience - options.pulse.period);  // the next one a period later
    Packet packet = beat(last, true, now);
    packet.stamp(announced, {});
    const StoreAddress to = *address;
    lock.unlock();
    static_cast<void>(push(to, packet.bytes));  // what cannot be sent is missed there
    lock.lock();
  } else if (!said && address && pulse.still(now) >= options.pulse.stall_seconds) {
    said = true;
    const char state = thread_state(options.thread).state;
    options.say("presum: rank " + std::to_string(options.pulse.identity.rank) +
                ", which records, has not moved for " +
                std::to_string(static_cast<int>(pulse.still(now))) +
                " s, in a call that holds the interpreter's lock" +
                (last.site.empty() ? "" : ", last seen in " + last.site) + " (step " +
                std::to_string(step::activity().step()) + ", thread state " + state +
                "): nothing is recorded until it returns");
  }
}

Watchdog::Watchdog(Options options) : state_(std::make_unique<State>(std::move(options))) {
  state_->thread = std::thread([state = state_.get()] { state->work(); });
}

Watchdog::~Watchdog() {
  if (state_->process != getpid()) {
    static_cast<void>(state_.release());  // its thread is not here, and its mutex may be held
    return;
  }
  {
    const std::lock_guard lock(state_->mutex);
    state_->ended = true;
  }
  state_->ends.notify_all();
  state_->thread.join();
}

Packet Watchdog::beat(Place place) {
  if (state_->process != getpid()) return {};
  const std::lock_guard lock(state_->mutex);
  const Seconds now = state_->options.clock();
  state_->beaten = now;
  state_->last = place;
  return state_->beat(std::move(place), false, now);
}

double Watchdog::still() const {
  if (state_->process != getpid()) return 0;
  const std::lock_guard lock(state_->mutex);
  return state_->pulse.still(state_->options.clock());
}

void Watchdog::reaches(StoreAddress address, Announcement announced) {
  if (state_->process != getpid()) return;
  const std::lock_guard lock(state_->mutex);
  state_->address = std::move(address);
  state_->announced = announced;
}

}  // namespace presum::watch
