// SPDX-License-Identifier: Apache-2.0
#include "step/steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "base/hash.h"
#include "base/simd.h"
#include "base/try.h"
#include "observe/gradient_pass.h"
#include "presum/fingerprint.h"

namespace presum::step {
namespace {

constexpr std::size_t kForwardsMax = 1 << 16;  // of a pass

// The beginning, the length and the hash of a fact that is too long to read.
std::string shortened(std::string_view text) {
  if (text.size() <= Observer::kFactBytesMax) return std::string(text);
  auto kept = Observer::kFactBytesMax - 64;
  while (kept > 0 && (static_cast<unsigned char>(text[kept]) & 0xC0U) == 0x80U) --kept;  // UTF-8
  return fmt::format("{}... ({} bytes, hash {:016x})", text.substr(0, kept), text.size(),
                     name_hash(text));
}

bool is_zero(const Number& number) {
  const double* value = std::get_if<double>(&number);
  return value != nullptr && *value == 0;
}

Status check_options(const ObserverOptions& options) {
  const std::uint32_t size = options.sketch_size;
  if (size != 0 &&
      (!std::has_single_bit(size) || size < packet::kSketchMin || size > packet::kSketchMax)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("sketch size {} is not 0 or a power of two from {} to {}", size,
                            packet::kSketchMin, packet::kSketchMax));
  }
  if (options.identity.replica >= options.identity.replicas) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("replica {} is not below the number of replicas {}",
                            options.identity.replica, options.identity.replicas));
  }
  return {};
}

}  // namespace

Result<Steps> Steps::create(ObserverOptions options, const std::vector<Parameter>& parameters,
                            Settings settings) {
  PRESUM_TRY(base::simd_target());
  PRESUM_TRY(check_options(options));
  PRESUM_ASSIGN(Layout layout, Layout::of(parameters, options.buffers));
  for (auto& [key, value] : options.facts) value = shortened(value);
  return Steps(std::move(options), settings, std::make_shared<const Layout>(std::move(layout)));
}

Steps::Steps(ObserverOptions options, Settings settings, std::shared_ptr<const Layout> layout)
    : options_(std::move(options)),
      settings_(settings),
      layout_(std::move(layout)),
      gradients_(*layout_, options_.sketch_size) {}

Packet Steps::hello() const {
  return packet::encode(packet::Hello{
      .header = {.identity = options_.identity},
      .facts = {.host = options_.host, .facts = options_.facts, .groups = layout_->groups()}});
}

void Steps::fact(std::string_view key, std::string_view value) {
  auto& facts = options_.facts;
  const auto at = std::ranges::find(facts, key, [](const auto& f) { return f.first; });
  if (at != facts.end()) {
    at->second = shortened(value);
  } else {
    facts.emplace_back(key, shortened(value));
  }
}

Packet Steps::note(bool final, std::uint64_t sent, std::uint64_t dropped, std::string_view text,
                   std::uint64_t clock) const {
  FinalState state{.optimizer_steps = clock, .states = {}};
  if (final) state.states = contents_.report.states;
  return packet::encode(packet::Note{.header = {.identity = options_.identity},
                                     .final = final,
                                     .sent = sent,
                                     .dropped = dropped,
                                     .text = std::string(text),
                                     .state = std::move(state)});
}

Packet Steps::broken(std::uint64_t sent, std::uint64_t dropped, std::string_view text) const {
  return packet::encode(packet::Note{.header = {.identity = options_.identity},
                                     .broken = true,
                                     .sent = sent,
                                     .dropped = dropped,
                                     .text = std::string(text),
                                     .state = {}});
}

// ---- events

void Steps::on(Event event) {
  machine_.on(event, [this](const Ended& step) { end(step); });
}

void Steps::end(const Ended& step) {
  const bool unreduced = !step.number.is_reduced();
  const bool recorded = unreduced ? is_recorded(step.number) : records_;
  records_ = false;
  ++windows_;
  Contents contents = std::exchange(contents_, {});
  begun_ = false;
  const bool wrapped = std::exchange(wrapped_, false);
  if (!recorded) {
    contents_.report.states = std::move(contents.report.states);
    return;
  }
  StepReport& report = contents.report;
  report.number = step.number;
  report.optimizer_step = optimizer_steps_;
  report.micro_batches = step.passes;
  contents.owns_known = contents.owns_known && step.whole;
  if (!numbers_itself_) {
    contents.fingerprint(static_cast<std::uint32_t>(FingerprintKind::kWrapperForward),
                         wrapped ? 1 : 0);
  }
  EndedStep& ended = ended_.emplace_back(
      layout_, packet::Header{.identity = options_.identity, .step = step.number.reductions},
      options_.sketch_size, std::move(contents));
  if (settings_.on_host) ended.put(gradients_);
}

void Steps::begin_contents() {
  ++windows_;
  auto states = std::move(contents_.report.states);
  contents_ = {};
  contents_.report.states = std::move(states);
}

std::optional<EndedStep> Steps::take_ended() {
  if (ended_.empty()) return std::nullopt;
  EndedStep out = std::move(ended_.front());
  ended_.pop_front();
  return out;
}

// Reduced steps by their own count, others by theirs, which goes on within it; of these the first
// of all, too.
bool Steps::is_recorded(const StepNumber& number) const {
  if (number.is_reduced()) return number.reductions % settings_.every == 0;
  return number.unreduced == 0 || (number.reductions + number.window) % settings_.every == 0;
}

bool Steps::next_is_recorded() const {
  return is_recorded(machine_.next_reduced()) ||
         (machine_.unreduced() > 0 && is_recorded(machine_.next()));
}

std::uint64_t Steps::turn() const {
  const StepNumber next = machine_.next();
  return next.reductions + next.window;
}

// ---- forward passes

bool Steps::asks_what_is_left() const {
  return open() && records_ && settings_.knows_optimizer && !in_optimizer_;
}

void Steps::forward(const Number& left) {
  if (open() && contents_.report.use != StepUse::kUsed) {
    contents_.after = left;
    contents_.report.use = in_optimizer_               ? StepUse::kUsed
                           : settings_.knows_optimizer ? StepUse::kKept
                                                       : StepUse::kUnknown;
  }
  on(Event::kForward);
}

void Steps::enter_wrapper() {
  reached_.clear();
  wrapped_ = entering_ = true;
}

bool Steps::enter_module() {
  const bool entered = std::exchange(entering_, false);
  if (open() && settings_.knows_optimizer) return false;  // the parameters are still to change
  if (open()) forward();
  const bool again = entered && machine_.passes() == 0;
  if ((begun_ && !again) || !next_is_recorded()) return false;
  begun_ = true;
  return true;
}

// ---- backward passes

void Steps::reached(std::uint64_t forward, const ForwardFacts& facts) {
  const auto at = std::ranges::find(reached_, forward, [](const auto& one) { return one.first; });
  if (at == reached_.end()) {
    if (reached_.size() < kForwardsMax) reached_.emplace_back(forward, facts);
  } else if (!at->second.loss) {
    at->second = facts;
  }
}

bool Steps::needs_root() const {
  return 1 != std::ranges::count_if(reached_,
                                    [](const auto& one) { return one.second.loss.has_value(); });
}

Read Steps::pass_begins(const PassBeginning& how) {
  if (open() && contents_.report.use != StepUse::kUsed) {
    contents_.after = how.held;
    contents_.report.use = settings_.knows_optimizer ? StepUse::kKept : StepUse::kUnknown;
  }
  on(how.reduces ? Event::kReducingPass : Event::kPass);
  if (machine_.passes() == 0) contents_.over = how.held;
  // A pass that is not reduced is read where it may well be a step, at the cost of one that is.
  const bool may_be_a_step = how.reduces || machine_.unreduced() > 0 || !how.more_follow;
  const StepNumber number = machine_.number();
  const std::uint64_t turn = number.reductions + (how.reduces ? 0 : number.window);
  const bool recorded = may_be_a_step && how.readable && turn % settings_.every == 0;
  if (how.reduces) records_ = recorded;
  if (reached_.empty()) reached_.emplace_back(0, ForwardFacts{});
  reads_ = recorded;
  contents_.read = recorded;
  if (!recorded) return Read::kNothing;
  begin_reading(number);
  return reading(how);
}

Read Steps::reading(const PassBeginning& how) const {
  const bool first = machine_.passes() == 0;
  const Number& over = first ? how.held : contents_.over;
  if (is_zero(over)) return Read::kSums;
  if (first) return Read::kArrivals;
  return is_late(over) ? Read::kSums : Read::kNothing;  // of the sum of both nothing is known
}

void Steps::begin_reading(const StepNumber& number) {
  gradients_.begin(number);
  contents_.report.skipped_parameters = 0;
  contents_.report.audit.reset();
  contents_.owns_known = true;
}

void Steps::pass_ends(const PassEnding& how) {
  on(Event::kPassEnd);
  stepped_.clear();
  contents_.scale = how.scale;
  Pass pass{.root = how.root,
            .root_scale = how.scale,
            .share_factor = how.share_factor,
            .gradient_factor = how.gradient_factor};
  for (auto& [forward, facts] : std::exchange(reached_, {})) pass.forwards.push_back(facts);
  if (collects()) contents_.passes.add(std::move(pass));
}

bool Steps::reduced_is_due() {
  const std::uint64_t now = machine_.number().reductions;
  if (!open() || !records_ || (!is_zero(contents_.over) && !is_late(contents_.over))) return false;
  if (last_reduced_ && now - *last_reduced_ < settings_.reduced_every) return false;
  last_reduced_ = now;
  return true;
}

void Steps::reduction(bool readable) {
  if (open()) forward();
  if (machine_.state() == State::kEmpty) {  // of a pass that was not seen
    on(Event::kPass);
    on(Event::kPassEnd);
  }
  reduce(readable);
}

void Steps::reduce(bool readable) {
  on(Event::kReduction);
  stepped_.clear();
  records_ = readable && is_recorded(machine_.number());
  contents_.read = records_;
  begin_reading(machine_.number());
}

void Steps::shadow() {
  forward();
  reduce(true);
  forward();
}

// ---- gradients

Status Steps::check(ParameterId parameter, const void* data, std::size_t count) const {
  if (parameter < layout_->parameters().size() && (data != nullptr || count == 0)) return {};
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("gradient of unknown parameter {} or without data", parameter));
}

Status Steps::gradient(ParameterId parameter, const void* data, std::size_t count, Dtype dtype) {
  PRESUM_TRY(check(parameter, data, count));
  gradients_.read(parameter, data, count, dtype);
  return {};
}

Status Steps::reduced_gradient(ParameterId parameter, const void* data, std::size_t count,
                               Dtype dtype) {
  PRESUM_TRY(check(parameter, data, count));
  gradients_.read_reduced(parameter, data, count, dtype);
  return {};
}

void Steps::arrives(ParameterId parameter) {
  contents_.owns_known = contents_.owns_known && !gradients_.seen(parameter);
}

std::uint64_t Steps::seed(ParameterId parameter, const StepNumber& step) const {
  return sketch_seed(layout_->parameters()[parameter].id, step);
}

// ---- between passes

bool Steps::zeroed(bool changed) {
  if (!settings_.knows_optimizer && changed) {
    on(Event::kOptimizerStep);
    return false;
  }
  const bool drops = machine_.state() == State::kWindow;
  on(Event::kZeroed);
  if (drops) begin_contents();
  return drops;
}

void Steps::optimizer_steps(std::uint64_t which) {
  in_optimizer_ = false;
  if (stepped_.empty() || stepped_.contains(which)) {
    ++optimizer_steps_;
    stepped_.clear();
  }
  stepped_.insert(which);
  if (machine_.state() != State::kEmpty) contents_.report.use = StepUse::kUsed;
  on(Event::kOptimizerStep);
}

void Steps::closed() {
  on(Event::kClosed);
}

// ---- states

Status Steps::state(StateHash::Kind kind, std::uint32_t index, const void* data, std::size_t count,
                    std::uint32_t element_bytes) {
  const auto dtype = element_bytes == 2   ? Dtype::kBF16
                     : element_bytes == 4 ? Dtype::kF32
                                          : Dtype::kF64;
  if (data == nullptr && count > 0) {
    return fail(ErrorCode::kInvalidArgument, "a state without data");
  }
  if (element_bytes != 2 && element_bytes != 4 && element_bytes != 8) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("a state of {} bytes an element", element_bytes));
  }
  return state_sum(kind, index, observe::gradient_pass(data, count, dtype, {}).fingerprint);
}

Status Steps::state_sum(StateHash::Kind kind, std::uint32_t index, std::uint64_t fingerprint) {
  const Layout::Tensor* what = layout_->hashed(kind, index);
  if (what == nullptr) {
    return fail(ErrorCode::kInvalidArgument, fmt::format("unknown parameter or buffer {}", index));
  }
  contents_.add_state(*layout_, *what, kind, fingerprint);
  return {};
}

// ---- explicit steps

void Steps::begin_step(std::uint64_t step) {
  on(Event::kClosed);
  ended_.clear();
  begin_contents();
  machine_.set_reductions(step);
  numbers_itself_ = true;
  on(Event::kReduction);
  records_ = true;
  gradients_.begin(machine_.number());
}

Status Steps::gradient_sums(ParameterId parameter, const GradientSums& sums, std::uint64_t elements,
                            bool reduced) {
  PRESUM_TRY(check(parameter, nullptr, 0));
  gradients_.take(parameter, sums, elements, reduced);
  return {};
}

Packet Steps::end_step(const StepEnd& end) {
  contents_.scale = end.gradient_scale;
  contents_.report.skipped_parameters = end.skipped_parameters;
  contents_.report.use = StepUse::kUnknown;
  on(Event::kForward);
  if (ended_.empty()) return {};
  EndedStep step = std::move(ended_.back());
  ended_.clear();
  step.contents().report.optimizer_step = end.optimizer_step;
  step.contents().report.micro_batches = end.micro_batches;
  return step.packet(end.dropped);
}

}  // namespace presum::step
