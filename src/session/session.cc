// SPDX-License-Identifier: Apache-2.0
#include "presum/session.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <exception>
#include <string_view>
#include <thread>
#include <utility>

#include "base/try.h"
#include "step/steps.h"

namespace presum {
namespace {

using Steady = std::chrono::steady_clock;

constexpr std::uint32_t kRecords = 0;  // the recording rank
constexpr std::chrono::milliseconds kPause{1};
constexpr Seconds kPatienceMax{1e9};
constexpr std::uint64_t kTakenAtAStep = 4;  // packets per rank

Steady::time_point after(Seconds patience) {
  const bool some = patience > Seconds(0);  // also false for NaN
  const Seconds kept = some ? std::min(patience, kPatienceMax) : Seconds(0);
  return Steady::now() + std::chrono::duration_cast<Steady::duration>(kept);
}

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

std::string text_of(const Announcement& announced) {
  return fmt::format("{} {}", announced.run, announced.segment);
}

std::optional<Announcement> announcement_of(std::string_view text) {
  Announcement announced;
  const char* const end = text.data() + text.size();
  const auto run = std::from_chars(text.data(), end, announced.run);
  if (run.ec != std::errc() || run.ptr == end || *run.ptr != ' ') return std::nullopt;
  const auto segment = std::from_chars(run.ptr + 1, end, announced.segment);
  if (segment.ec != std::errc() || segment.ptr != end) return std::nullopt;
  return announced;
}

step::WorkerOptions worker_options(SessionOptions options) {
  return {
      .identity = {.replica = options.rank, .rank = options.rank, .replicas = options.world_size},
      .sketch_size = options.sketch_size,
      .host = options.host.empty() ? this_host() : std::move(options.host),
      .facts = std::move(options.facts),
      .buffers = std::move(options.buffers)};
}

}  // namespace

struct Session::State {
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint64_t reduced_every = 0;
  std::unique_ptr<Transport> transport;  // null: none was given, or it failed
  std::optional<step::Steps> steps;
  std::optional<Aggregator> aggregator;
  std::optional<Announcement> announced;  // none: inactive
  std::uint64_t dropped = 0;              // dropped packets
  std::vector<std::uint64_t> elements;    // of each parameter
  std::optional<std::uint64_t> step;      // the last step begun
  std::uint64_t optimizer_steps = 0;
  bool in_step = false;
  bool has_facts = false;  // facts that no hello has sent yet
  Status first;
  Status untold;

  bool records() const { return rank == kRecords; }
  bool active() const { return announced && steps; }

  void note(const Status& error) {
    if (!first) return;
    first = error;
    untold = error;
  }

  // Ends the recording with an error.
  void end(const Status& error) {
    if (error) return;
    note(error);
    if (aggregator) aggregator->abandon(error.error().message);
    transport.reset();
    announced.reset();
  }

  // Returns the error that was not returned yet.
  Status tell() { return std::exchange(untold, {}); }

  // Returns what `call` returns, or a default value if there is no transport or `call` throws.
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

  // Rank 0 continues with its own steps.
  void lose(std::string_view what) {
    const std::string why = fmt::format("the transport of packets failed ({})", what);
    transport.reset();  // `what` may belong to it
    if (aggregator) static_cast<void>(aggregator->lose_others(why));
    note(fail(ErrorCode::kIo, why));
    if (!records()) announced.reset();
  }

  // Announces even after an error here, because the other ranks wait for the announcement.
  void open(SessionOptions options, const std::vector<Parameter>& parameters) {
    Status opened;
    try {
      opened = open_own(std::move(options), parameters);
    } catch (const std::exception& error) {
      opened = fail(ErrorCode::kIo, error.what());
    }
    if (aggregator) announced = aggregator->announcement();
    const std::string own = announced ? text_of(*announced) : "";
    const std::string told = carried([&](Transport& to) { return to.announce(own); });
    if (!records() && !told.empty()) {
      announced = announcement_of(told);
      if (!announced) end(fail(ErrorCode::kIo, "the transport brought another announcement"));
    }
    end(opened);
    if (active()) end(send(steps->hello()));
  }

  Status open_own(SessionOptions options, const std::vector<Parameter>& parameters) {
    PRESUM_TRY(check(options, transport != nullptr));
    const std::filesystem::path run = options.run;
    PRESUM_ASSIGN(steps, step::Steps::create(worker_options(std::move(options)), parameters, {}));
    if (!records()) return {};
    PRESUM_ASSIGN(aggregator, Aggregator::open({.run = run, .world_size = world_size}));
    return {};
  }

  // Steps must ascend; otherwise the aggregator would drop the ones that follow.
  void begin(std::uint64_t next) {
    if (step && next <= *step) {
      return end(
          fail(ErrorCode::kInvalidArgument,
               fmt::format("step {} was begun after step {}: number steps on", next, *step)));
    }
    if (!step) optimizer_steps = next;
    step = next;
    in_step = true;
    steps->begin_step(next);
  }

  Status check_gradient(ParameterId parameter, std::size_t count, Dtype dtype) const {
    if (element_bytes(dtype) == 0) return fail(ErrorCode::kInvalidArgument, "an unknown dtype");
    if (parameter < elements.size() && count != elements[parameter]) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("a gradient of {} elements, of parameter {} that has {}", count,
                              parameter, elements[parameter]));
    }
    return {};
  }

  bool put(Packet packet) {
    return carried([&](Transport& to) { return to.send(std::move(packet)); });
  }

  Status send(Packet packet) {
    packet.stamp(*announced, dropped);
    bool taken = true;
    Status status;
    if (records()) {
      status = aggregator->ingest(packet.bytes);
    } else {
      taken = put(std::move(packet));
    }
    if (!taken) ++dropped;
    return status;
  }

  // On rank 0. Limited, so that ranks that send endlessly cannot hold rank 0 here.
  Status take_what_came(Steady::time_point deadline = Steady::time_point::max()) {
    for (auto left = kTakenAtAStep * world_size; left > 0 && Steady::now() < deadline; --left) {
      const auto packet = carried([](Transport& from) { return from.receive(); });
      if (!packet) break;
      PRESUM_TRY(aggregator->ingest(packet->bytes));
    }
    return aggregator->tick();
  }

  Status end_step(const StepEnd& given) {
    optimizer_steps = given.optimizer_steps(*step);
    if (std::exchange(has_facts, false)) PRESUM_TRY(send(steps->hello()));
    PRESUM_TRY(send(step::end_step(*steps, given)));
    return records() ? take_what_came() : Status();
  }

  bool everyone_left() const {
    return !transport || (aggregator->everyone_left() && aggregator->ranks_heard() == world_size);
  }

  Status record_the_end(Steady::time_point deadline) {
    PRESUM_TRY(send(steps->goodbye(optimizer_steps)));
    PRESUM_TRY(take_what_came(deadline));
    while (!everyone_left() && Steady::now() < deadline) {
      std::this_thread::sleep_for(kPause);
      PRESUM_TRY(take_what_came(deadline));
    }
    if (everyone_left()) return aggregator->close();
    const std::string why = fmt::format("not all of {} ranks said goodbye", world_size);
    PRESUM_TRY(aggregator->lose_others(why));
    PRESUM_TRY(aggregator->close());
    return fail(ErrorCode::kIo, why);
  }

  void flush_until(Steady::time_point deadline) {
    static_cast<void>(carried([&](Transport& to) {
      to.flush(std::max(Seconds(deadline - Steady::now()), Seconds(0)));
      return true;
    }));
  }

  // Flushes the packets under way for half of the time, because the goodbye must come last.
  Status leave(Steady::time_point deadline) {
    const auto now = Steady::now();
    flush_until(now + (deadline - now) / 2);
    if (active()) PRESUM_TRY(send(steps->goodbye(optimizer_steps)));
    flush_until(deadline);
    return {};
  }
};

Session::Session() noexcept = default;
Session::Session(Error why) : state_(std::make_unique<State>()) { state_->first = std::move(why); }
Session::Session(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

Session Session::create(SessionOptions options, const std::vector<Parameter>& parameters,
                        std::unique_ptr<Transport> transport) {
  auto state = std::make_unique<State>();
  state->rank = options.rank;
  state->world_size = options.world_size;
  state->reduced_every = options.reduced_every;
  state->transport = std::move(transport);
  for (const Parameter& one : parameters) state->elements.push_back(one.elements);
  state->open(std::move(options), parameters);
  state->untold = {};  // status() reports it
  return Session(std::move(state));
}

bool Session::active() const { return state_ && state_->active(); }
Status Session::status() const { return state_ ? state_->first : Status(); }

void Session::begin_step(std::uint64_t step) {
  if (active()) {
    state_->begin(step);
  } else if (state_) {
    state_->step = step;
  }
}

Status Session::gradient(ParameterId parameter, const void* data, std::size_t count, Dtype dtype) {
  if (!active()) return {};
  PRESUM_TRY(state_->check_gradient(parameter, count, dtype));
  return state_->steps->gradients().read(parameter, data, count, dtype, false);
}

Status Session::loss(double value, double weight, std::uint64_t tokens) {
  if (!active()) return {};
  if (!(weight >= 0) || !std::isfinite(weight)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the weight of a loss must be finite and at least 0, not {}", weight));
  }
  state_->steps->loss(value, weight, tokens);
  return {};
}

bool Session::wants_reduced_gradient() const {
  return state_ && state_->step && state_->reduced_every > 0 &&
         *state_->step % state_->reduced_every == 0;
}

Status Session::reduced_gradient(ParameterId parameter, const void* data, std::size_t count,
                                 Dtype dtype) {
  if (!active()) return {};
  PRESUM_TRY(state_->check_gradient(parameter, count, dtype));
  return state_->steps->gradients().read(parameter, data, count, dtype, true);
}

void Session::fingerprint(std::uint32_t kind, std::uint64_t value) {
  if (active()) state_->steps->contents().fingerprint(kind, value);
}

void Session::samples(std::span<const std::uint64_t> hashes) {
  if (active()) state_->steps->contents().samples(hashes);
}

void Session::indices(std::span<const std::uint64_t> indices) {
  if (active()) state_->steps->contents().indices(indices);
}

void Session::begin_states() {
  if (active()) state_->steps->contents().begin_states();
}

Status Session::state(StateHash::Kind kind, std::uint32_t index, const void* data,
                      std::size_t count, std::uint32_t element_bytes, std::uint32_t shard) {
  if (!active()) return {};
  step::Steps& steps = *state_->steps;
  return steps.contents().state(steps.layout(), kind, index, data, count, element_bytes, shard);
}

void Session::fact(std::string_view key, std::string_view value) {
  if (!active()) return;
  state_->steps->worker().fact(key, value);
  state_->has_facts = true;
}

Status Session::end_step(const StepEnd& end) {
  if (!active()) return state_ ? state_->tell() : Status();
  if (!std::exchange(state_->in_step, false)) {
    return fail(ErrorCode::kInvalidArgument, "end_step: no step was begun");
  }
  if (!(end.gradient_scale > 0) || !std::isfinite(end.gradient_scale)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("gradient_scale must be above 0, not {}: the step is not recorded",
                            end.gradient_scale));
  }
  state_->end(state_->end_step(end));
  return state_->tell();
}

Status Session::close(Seconds patience) {
  if (!active()) return state_ ? state_->tell() : Status();
  const auto deadline = after(patience);
  state_->end(state_->records() ? state_->record_the_end(deadline) : state_->leave(deadline));
  state_->announced.reset();
  state_->transport.reset();
  return state_->tell();
}

const Aggregator* Session::aggregator() const {
  return state_ && state_->aggregator ? &*state_->aggregator : nullptr;
}

}  // namespace presum
