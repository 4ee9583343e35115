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

constexpr std::uint64_t kLayersEvery = 25;  // for steps that the program numbers

bool is_zero(const Number& number) {
  const double* value = std::get_if<double>(&number);
  return value != nullptr && *value == 0;
}

Status check_options(const WorkerOptions& options) {
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

bool is_unknown(const Number& number) {
  return !is_late(number) && std::isnan(std::get<double>(number));
}

// If `.grad` may have held something other than zero, the own gradient cannot be read from the sum.
Read what_to_read(bool first_pass, const Number& over) {
  if (is_zero(over)) return Read::kSums;
  if (first_pass) return Read::kArrivals;
  return is_late(over) ? Read::kSums : Read::kNothing;
}

}  // namespace

Result<Steps> Steps::create(WorkerOptions options, const std::vector<Parameter>& parameters,
                            Settings settings) {
  PRESUM_TRY(base::simd_target());
  PRESUM_TRY(check_options(options));
  PRESUM_ASSIGN(Layout layout, Layout::of(parameters, options.buffers));
  return Steps(std::move(options), std::move(settings),
               std::make_shared<const Layout>(std::move(layout)));
}

Steps::Steps(WorkerOptions options, Settings settings, std::shared_ptr<const Layout> layout)
    : worker_(std::move(options)),
      timing_(std::move(settings.clocks), worker_.identity().model_index),
      optimizers_(settings.knows_optimizer, settings.one_optimizer),
      cadence_(settings.every, settings.reduced_every),
      on_host_(settings.on_host),
      layout_(std::move(layout)),
      gradients_(*layout_, worker_.sketch_size()) {}

Packet Steps::goodbye(std::uint64_t optimizer_steps, std::vector<FingerprintValue> fingerprints,
                      std::string text) const {
  return worker_.note({.final = true,
                       .text = std::move(text),
                       .state = {.optimizer_steps = optimizer_steps,
                                 .states = contents_.report.states,
                                 .fingerprints = std::move(fingerprints)}});
}

// ---- events

void Steps::on(Event event) {
  const std::uint64_t dropped = machine_.windows_left();
  machine_.on(event, [this](const Ended& step) { end(step); });
  if (machine_.windows_left() != dropped) leave_window();
}

void Steps::end(const Ended& step) {
  const bool unreduced = !step.number.is_reduced();
  const bool recorded = unreduced ? cadence_.records(step.number) : records_;
  records_ = false;
  ++windows_;
  StepTimes times = timing_.end(recorded || next_is_recorded());
  Contents contents = std::exchange(contents_, {});
  begun_ = false;
  const bool wrapped = std::exchange(wrapped_, false);
  if (!recorded) {
    contents_.report.states = std::move(contents.report.states);
    return;
  }
  contents.ends(step, optimizers_.steps());
  if (!numbers_itself_) contents.told(wrapped, std::move(times));
  EndedStep& ended = ended_.emplace_back(
      layout_, packet::Header{.identity = worker_.identity(), .step = step.number.reductions},
      worker_.sketch_size(), std::move(contents));
  if (on_host_ && ended.contents().read) ended.put(gradients_);
}

void Steps::leave_window() {
  ++windows_;
  contents_.forget();
}

std::optional<EndedStep> Steps::take_ended() {
  if (ended_.empty()) return std::nullopt;
  EndedStep out = std::move(ended_.front());
  ended_.pop_front();
  return out;
}

// ---- forward passes

bool Steps::asks_what_is_left() const {
  return open() && records_ && optimizers_.known() && !optimizers_.in_step();
}

void Steps::tell_what_is_left(const Number& left) {
  if (!open() || contents_.report.use == StepUse::kUsed) return;
  contents_.after = left;
  contents_.report.use = optimizers_.use_of(!is_unknown(left));
}

void Steps::forward(const Number& left) {
  tell_what_is_left(left);
  on(Event::kForward);
}

void Steps::enter_wrapper() {
  timing_.on(Mark::kForward, machine_);
  reached_.clear();
  wrapped_ = entering_ = true;
}

bool Steps::enter_module() {
  const bool entered = std::exchange(entering_, false);
  const bool changes = open() && optimizers_.known();  // the parameters change before the next step
  if (open() && !changes) forward();
  timing_.on(Mark::kForward, machine_);
  if (changes) return false;
  const bool again = entered && machine_.passes() == 0;
  if ((begun_ && !again) || !next_is_recorded()) return false;
  begun_ = true;
  return true;
}

// ---- backward passes

Read Steps::pass_begins(const PassBeginning& how) {
  if (open()) forward();
  on(how.reduces ? Event::kReducingPass : Event::kPass);
  if (machine_.passes() == 0) {
    contents_.over = how.held;
    contents_.after_step = optimizers_.window_begins();
  }
  // A pass that is not reduced is read if it may be a step; that costs as much as reading a step.
  const bool may_be_a_step = how.reduces || machine_.unreduced() > 0 || !how.more_follow;
  const StepNumber number = machine_.number();
  const bool recorded = may_be_a_step && how.readable && cadence_.on_grid(number);
  if (how.reduces) records_ = recorded;
  if (reached_.empty()) reached_.add(0, {});
  contents_.read = recorded;
  if (!recorded) return Read::kNothing;
  begin_reading(number);
  contents_.owns_known = !is_unknown(contents_.over);
  return what_to_read(machine_.passes() == 0, contents_.over);
}

void Steps::begin_reading(const StepNumber& number) {
  gradients_.begin(number, number.is_reduced() && cadence_.reads_reduced(number.reductions));
  contents_.begin_reading();
}

void Steps::pass_ends(Pass pass, bool part) {
  timing_.on(Mark::kPassEnds, machine_);
  on(part ? Event::kPartEnd : Event::kPassEnd);
  optimizers_.pass_ended();
  contents_.scale = pass.root_scale;
  pass.forwards = reached_.take();
  if (collects()) contents_.passes.add(std::move(pass));
}

bool Steps::reduced_is_due() const {
  const bool readable = is_zero(contents_.over) || is_late(contents_.over);
  return open() && records_ && readable && cadence_.reads_reduced(machine_.number().reductions);
}

void Steps::reduction() {
  if (open()) forward();
  if (machine_.state() == State::kEmpty) {  // the reduction of a pass that was not seen
    on(Event::kPass);
    on(Event::kPassEnd);
  }
  reduce();
}

void Steps::reduce() {
  on(Event::kReduction);
  optimizers_.pass_ended();
  records_ = cadence_.records(machine_.number());
  contents_.read = records_;
  begin_reading(machine_.number());
}

void Steps::shadow() {
  forward();
  reduce();
  forward();
}

void Steps::arrives(ParameterId parameter) {
  contents_.owns_known = contents_.owns_known && !gradients_.seen(parameter);
}

// ---- between passes

void Steps::zeroed(bool changed) {
  if (!optimizers_.known() && changed) return on(Event::kOptimizerStep);
  on(Event::kZeroed);
}

void Steps::optimizer_begins() {
  timing_.on(Mark::kOptimizerBegins, machine_);
  optimizers_.begin();
}

void Steps::optimizer_steps(std::uint64_t which) {
  timing_.on(Mark::kOptimizerEnds, machine_);
  optimizers_.end(which);
  if (machine_.state() != State::kEmpty) contents_.report.use = StepUse::kUsed;
  on(Event::kOptimizerStep);
}

void Steps::closed() { on(Event::kClosed); }

// ---- explicit steps

void Steps::begin_step(std::uint64_t step) {
  on(Event::kClosed);
  ended_.clear();
  leave_window();
  machine_.set_reductions(step);
  numbers_itself_ = true;
  on(Event::kReduction);
  records_ = true;
  gradients_.begin(machine_.number(), step % kLayersEvery == 0);
}

Packet end_step(Steps& steps, const StepEnd& end) {
  steps.contents().scale = end.gradient_scale;
  steps.contents().report.skipped_parameters = end.skipped_parameters;
  steps.forward();
  auto step = steps.take_ended();
  if (!step) return {};
  StepReport& report = step->contents().report;
  report.optimizer_step = end.optimizer_steps(report.number.reductions);
  report.micro_batches = end.micro_batches;
  return step->packet();
}

}  // namespace presum::step
