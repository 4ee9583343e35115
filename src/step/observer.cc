// SPDX-License-Identifier: Apache-2.0
#include "presum/observer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/simd.h"
#include "base/try.h"
#include "step/steps.h"

namespace presum {
namespace {

constexpr std::string_view kWrapperParts[] = {"module", "_orig_mod", "_fsdp_wrapped_module",
                                              "_checkpoint_wrapped_module"};

std::vector<std::string_view> split_path(std::string_view name) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    parts.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string join_path(std::span<const std::string_view> parts) {
  return fmt::format("{}", fmt::join(parts, "."));
}

bool is_number(std::string_view part) {
  return !part.empty() && std::all_of(part.begin(), part.end(),
                                      [](unsigned char c) { return std::isdigit(c) != 0; });
}

}  // namespace

std::string canonical_name(std::string_view name) {
  auto parts = split_path(name);
  const auto is_wrapper = [](std::string_view part) {
    return std::find(std::begin(kWrapperParts), std::end(kWrapperParts), part) !=
           std::end(kWrapperParts);
  };
  // The last part is the parameter's own name, whatever it is called.
  const auto last = parts.back();
  parts.pop_back();
  std::erase_if(parts, is_wrapper);
  parts.push_back(last);
  return join_path(parts);
}

std::string default_group(std::string_view name) {
  const std::string canonical = canonical_name(name);
  const auto parts = split_path(canonical);
  const auto number = std::find_if(parts.begin(), parts.end(), is_number);
  const auto kept = number != parts.end() ? static_cast<std::size_t>(number - parts.begin()) + 1
                                          : std::min<std::size_t>(2, parts.size());
  return join_path(std::span(parts).first(kept));
}

std::uint64_t count_targets(std::span<const std::int64_t> labels, std::int64_t ignored) {
  const auto left_out = std::count(labels.begin(), labels.end(), ignored);
  return labels.size() - static_cast<std::size_t>(left_out);
}

Result<std::string_view> simd_target() { return base::simd_target(); }

SimdTargets simd_targets() { return {base::simd_targets(), base::impossible_simd_targets()}; }

struct Observer::State {
  step::Steps steps;
};

Observer::Observer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Observer::Observer(Observer&&) noexcept = default;
Observer& Observer::operator=(Observer&&) noexcept = default;
Observer::~Observer() = default;

Result<Observer> Observer::create(ObserverOptions options,
                                  const std::vector<Parameter>& parameters) {
  PRESUM_ASSIGN(auto steps, step::Steps::create(std::move(options), parameters, {}));
  return Observer(std::make_unique<State>(State{std::move(steps)}));
}

Packet Observer::hello() const { return state_->steps.hello(); }

void Observer::fact(std::string_view key, std::string_view value) {
  state_->steps.worker().fact(key, value);
}

void Observer::begin_step(std::uint64_t step) { state_->steps.begin_step(step); }

Status Observer::gradient(ParameterId parameter, const void* data, std::size_t count, Dtype dtype) {
  return state_->steps.gradients().read(parameter, data, count, dtype);
}

Status Observer::reduced_gradient(ParameterId parameter, const void* data, std::size_t count,
                                  Dtype dtype) {
  return state_->steps.gradients().read_reduced(parameter, data, count, dtype);
}

Status Observer::gradient_sums(ParameterId parameter, const GradientSums& sums,
                               std::uint64_t elements, bool reduced) {
  return state_->steps.gradients().take(parameter, sums, elements, reduced);
}

void Observer::add_sketch(std::span<const float> values) {
  state_->steps.gradients().add_sketch(values);
}

std::uint64_t Observer::sketch_seed(ParameterId parameter, std::uint64_t step) const {
  return state_->steps.gradients().seed(parameter, {.reductions = step});
}

void Observer::loss(double value, double weight, std::uint64_t tokens) {
  state_->steps.loss(value, weight, tokens);
}

void Observer::fingerprint(std::uint32_t kind, std::uint64_t value) {
  state_->steps.contents().fingerprint(kind, value);
}

void Observer::samples(std::span<const std::uint64_t> hashes) {
  state_->steps.contents().samples(hashes);
}

void Observer::indices(std::span<const std::uint64_t> indices) {
  state_->steps.contents().indices(indices);
}

void Observer::mean_dot(double value) { state_->steps.contents().mean_dot = value; }

Status Observer::gram(std::span<const double> share) {
  return state_->steps.contents().set_gram(share, state_->steps.identity().replicas);
}

void Observer::audit(const AuditRecord& audit) { state_->steps.contents().report.audit = audit; }

void Observer::begin_states() { state_->steps.contents().begin_states(); }

Status Observer::state(StateHash::Kind kind, std::uint32_t index, const void* data,
                       std::size_t count, std::uint32_t element_bytes, std::uint32_t shard) {
  return state_->steps.contents().state(state_->steps.layout(), kind, index, data, count,
                                        element_bytes, shard);
}

Status Observer::state_sum(StateHash::Kind kind, std::uint32_t index, std::uint64_t fingerprint,
                           std::uint32_t shard) {
  return state_->steps.contents().state_sum(state_->steps.layout(), kind, index, fingerprint,
                                            shard);
}

void Observer::watch(std::string_view name) { state_->steps.worker().watch(name); }

void Observer::watched(std::string_view name, std::uint32_t index, std::uint64_t fingerprint) {
  state_->steps.contents().watched(name, index, fingerprint);
}

Packet Observer::end_step(const StepEnd& end) { return step::end_step(state_->steps, end); }

Packet Observer::broken(std::uint64_t sent, std::uint64_t dropped, std::string_view text) const {
  return state_->steps.worker().broken(sent, dropped, text);
}

Packet Observer::note(bool final, std::uint64_t sent, std::uint64_t dropped, std::string_view text,
                      std::uint64_t clock) const {
  return state_->steps.note(final, sent, dropped, text, clock);
}

}  // namespace presum
