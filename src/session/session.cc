// SPDX-License-Identifier: Apache-2.0
#include "presum/session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>

#include "base/try.h"

namespace presum {
namespace {

using Steady = std::chrono::steady_clock;

constexpr std::uint32_t kRecords = 0;  // the rank
constexpr std::chrono::milliseconds kPause{1};

Status check(const SessionOptions& options, bool has_transport) {
  if (options.rank >= options.world_size) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("rank {} is not one of {}", options.rank, options.world_size));
  }
  if (options.world_size > 1 && !has_transport) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} ranks need a transport", options.world_size));
  }
  return {};
}

std::string this_host() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

// What rank 0 tells the others; empty where it cannot record.
std::string text_of(const Announcement& announced) {
  return fmt::format("{} {}", announced.run, announced.segment);
}

std::optional<Announcement> announcement_of(const std::string& text) {
  Announcement announced;
  std::istringstream(text) >> announced.run >> announced.segment;
  return announced.run == 0 ? std::nullopt : std::optional(announced);
}

ObserverOptions observer_options(SessionOptions options) {
  return {
      .identity = {.replica = options.rank, .rank = options.rank, .replicas = options.world_size},
      .sketch_size = options.sketch_size,
      .host = options.host.empty() ? this_host() : std::move(options.host),
      .facts = std::move(options.facts),
      .buffers = std::move(options.buffers)};
}

}  // namespace

struct Session::State {
  SessionOptions options;
  std::unique_ptr<Transport> transport;  // null: none, or it failed
  std::optional<Observer> observer;
  std::optional<Aggregator> aggregator;
  std::optional<Announcement> announced;  // none: inactive
  SendCounts counts;
  std::uint64_t step = 0;
  std::uint64_t optimizer_steps = 0;
  Status first;

  bool records() const { return options.rank == kRecords; }
  bool active() const { return announced && observer; }

  Status end(Status status) {
    if (status) return status;
    if (first) first = status;
    if (aggregator) static_cast<void>(aggregator->close());
    announced.reset();
    return status;
  }

  // What `call` returns, or nothing where there is no transport, or it throws.
  template <class Call>
  auto carried(Call call) -> decltype(call(*transport)) {
    try {
      if (transport) return call(*transport);
    } catch (const std::exception& error) {
      lose(error.what());
    } catch (...) {
      lose("unknown exception");
    }
    return {};
  }

  // Rank 0 goes on with its own steps.
  void lose(std::string_view what) {
    transport.reset();
    const std::string why = fmt::format("the transport of packets failed ({})", what);
    if (aggregator) static_cast<void>(aggregator->lose_others(why));
    if (first) first = fail(ErrorCode::kIo, why);
    if (!records()) announced.reset();
  }

  void open(const std::vector<Parameter>& parameters) {
    Status status = check(options, transport != nullptr);
    if (status) status = open_observer(parameters);
    if (status && records()) status = open_aggregator();
    static_cast<void>(end(std::move(status)));
    const std::string own = aggregator ? text_of(aggregator->announcement()) : "";
    // In any case: the other ranks wait for it.
    const std::string told = carried([&](Transport& to) { return to.announce(own); });
    announced = announcement_of(records() ? own : told);
    if (active()) static_cast<void>(end(send(observer->hello())));
  }

  Status open_observer(const std::vector<Parameter>& parameters) {
    PRESUM_ASSIGN(observer, Observer::create(observer_options(options), parameters));
    return {};
  }

  Status open_aggregator() {
    PRESUM_ASSIGN(aggregator,
                  Aggregator::open({.run = options.run, .world_size = options.world_size}));
    return {};
  }

  Status send(Packet packet) {
    packet.stamp(*announced, counts);
    bool taken = true;
    Status status;
    if (records()) {
      status = aggregator->ingest(packet.bytes);
    } else {
      taken = carried([&](Transport& to) { return to.send(std::move(packet)); });
    }
    ++(taken ? counts.sent : counts.dropped);
    return status;
  }

  // On rank 0.
  Status take_what_came() {
    while (const auto packet = carried([](Transport& from) { return from.receive(); })) {
      PRESUM_TRY(aggregator->ingest(packet->bytes));
    }
    return aggregator->tick();
  }

  Status end_step(const StepEnd& given) {
    optimizer_steps = given.optimizer_step.value_or(step + 1);
    PRESUM_TRY(send(observer->end_step(given)));
    return records() ? take_what_came() : Status();
  }

  bool everyone_left() const {
    return !transport ||
           (aggregator->everyone_left() && aggregator->ranks_heard() == options.world_size);
  }

  Status record_the_end(Steady::time_point deadline) {
    PRESUM_TRY(send(observer->goodbye(optimizer_steps)));
    PRESUM_TRY(take_what_came());
    while (!everyone_left() && Steady::now() < deadline) {
      std::this_thread::sleep_for(kPause);
      PRESUM_TRY(take_what_came());
    }
    return aggregator->close();
  }

  // First what is under way, so that there is room for the goodbye.
  Status leave(Steady::time_point deadline) {
    const auto flush = [&](Transport& to) {
      to.flush(std::max(Seconds(deadline - Steady::now()), Seconds(0)));
      return true;
    };
    static_cast<void>(carried(flush));
    if (active()) PRESUM_TRY(send(observer->goodbye(optimizer_steps)));
    static_cast<void>(carried(flush));
    return {};
  }
};

Session::Session() : state_(std::make_unique<State>()) {}
Session::Session(Error why) : Session() { state_->first = std::move(why); }
Session::Session(std::unique_ptr<State> state) : state_(std::move(state)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

Session Session::create(SessionOptions options, const std::vector<Parameter>& parameters,
                        std::unique_ptr<Transport> transport) {
  auto state = std::make_unique<State>();
  state->options = std::move(options);
  state->transport = std::move(transport);
  state->open(parameters);
  return Session(std::move(state));
}

bool Session::active() const { return state_->active(); }
Status Session::status() const { return state_->first; }

void Session::begin_step(std::uint64_t step) {
  state_->step = step;
  if (active()) state_->observer->begin_step(step);
}

Status Session::gradient(ParameterId parameter, const void* data, std::size_t count, Dtype dtype) {
  return active() ? state_->observer->gradient(parameter, data, count, dtype) : Status();
}

void Session::loss(double value, double weight, std::uint64_t tokens) {
  if (active()) state_->observer->loss(value, weight, tokens);
}

bool Session::wants_reduced_gradient() const {
  const std::uint64_t every = state_->options.reduced_every;
  return active() && every > 0 && state_->step % every == 0;
}

Status Session::reduced_gradient(ParameterId parameter, const void* data, std::size_t count,
                                 Dtype dtype) {
  return active() ? state_->observer->reduced_gradient(parameter, data, count, dtype) : Status();
}

Status Session::end_step(const StepEnd& end) {
  return active() ? state_->end(state_->end_step(end)) : Status();
}

Status Session::close(Seconds patience) {
  if (!active()) return {};
  const auto deadline = Steady::now() + std::chrono::duration_cast<Steady::duration>(patience);
  const Status done =
      state_->records() ? state_->record_the_end(deadline) : state_->leave(deadline);
  Status told = state_->end(done);
  state_->announced.reset();
  return told;
}

Observer* Session::observer() { return active() ? &*state_->observer : nullptr; }

const Aggregator* Session::aggregator() const {
  return state_->aggregator ? &*state_->aggregator : nullptr;
}

}  // namespace presum
