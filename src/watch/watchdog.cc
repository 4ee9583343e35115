// SPDX-License-Identifier: Apache-2.0
#include "watch/watchdog.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace presum::watch {
namespace {

constexpr double kPeriodsOfPatience = 3;
constexpr double kLooksPerPeriod = 4;
constexpr int kPushesMax = 600;  // while the interpreter does not respond

}  // namespace

struct Watchdog::State {
  explicit State(Options o)
      : options(std::move(o)), pulse(options.pulse, options.clock()), beaten(options.clock()) {}

  void work() noexcept;
  std::string text_of(Seconds now) const;
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
  Place last;      // the last place that it reported
  std::optional<StoreAddress> address;
  Announcement announced;
  bool said = false;
  int pushes = 0;
  std::thread thread;
};

// Throws nothing: without memory for a packet, none is sent.
void Watchdog::State::work() noexcept {
  const std::chrono::duration<double> pause(options.pulse.period / kLooksPerPeriod);
  try {
    std::unique_lock lock(mutex);
    while (!ends.wait_for(lock, pause, [&] { return ended; })) look(lock);
  } catch (const std::exception&) {
  }
}

void Watchdog::State::look(std::unique_lock<std::mutex>& lock) {
  const Seconds now = options.clock();
  pulse.look(step::activity(), now);
  const double patience = kPeriodsOfPatience * options.pulse.period;
  if ((now - beaten).count() < patience || step::activity().events() == 0 || !address) return;
  if (!address->hosts.empty()) {
    if (pushes++ >= kPushesMax) return;
    beaten = now - Seconds(patience - options.pulse.period);  // the next one is due a period later
    Packet packet = beat(last, true, now);
    packet.stamp(announced);
    const StoreAddress to = *address;
    lock.unlock();
    static_cast<void>(push(to, packet.bytes));  // the receiver notices that a heartbeat is missing
    lock.lock();
  } else if (!said && options.say && pulse.still(now) >= options.pulse.stall_seconds) {
    said = true;
    const std::string line = text_of(now);
    lock.unlock();  // `say` may be slow
    options.say(line);
    lock.lock();
  }
}

std::string Watchdog::State::text_of(Seconds now) const {
  const std::string site = last.site.empty() ? "" : ", last seen in " + last.site;
  return "presum: rank " + std::to_string(options.pulse.identity.rank) +
         ", which records, has not moved for " +
         std::to_string(static_cast<int>(pulse.still(now))) +
         " s and does not answer: a call holds the interpreter's lock" + site + " (step " +
         std::to_string(step::activity().step()) + ", thread state " +
         thread_state(options.thread).state + "); nothing is recorded until it returns";
}

// If no thread can be started, the process runs without a watchdog.
Watchdog::Watchdog(Options options) : state_(std::make_unique<State>(std::move(options))) {
  try {
    state_->thread = std::thread([state = state_.get()] { state->work(); });
  } catch (const std::system_error&) {
  }
}

Watchdog::~Watchdog() {
  if (state_->process != getpid()) {
    // the thread does not exist in this process, and its mutex may be locked
    static_cast<void>(state_.release());
    return;
  }
  stop();
}

void Watchdog::stop() {
  if (state_->process != getpid()) return;
  {
    const std::lock_guard lock(state_->mutex);
    state_->ended = true;
  }
  state_->ends.notify_all();
  if (state_->thread.joinable()) state_->thread.join();
}

Packet Watchdog::beat(Place place) {
  if (state_->process != getpid()) return {};
  const std::lock_guard lock(state_->mutex);
  const Seconds now = state_->options.clock();
  state_->beaten = now;
  state_->pushes = 0;
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
