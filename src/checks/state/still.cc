// SPDX-License-Identifier: Apache-2.0
#include "checks/state/still.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/hash.h"
#include "checks/engine/step_context.h"

namespace presum::checks {
namespace {

constexpr std::size_t kGroups = 65536;

}  // namespace

double learning_rate(const WorkerRecord& worker) {
  return real_of(worker, FingerprintKind::kLearningRate);
}

void StillParameters::see(const WorkerRecord& worker, std::uint64_t step) {
  ++looks_;
  ++unchanged_;
  for (const StateHash& state : worker.states) {
    if (state.kind == StateHash::Kind::kParameters) follow(state, step);
  }
  if (looks_ % kKept == 0) {
    std::erase_if(held_, [&](const auto& held) { return held.second.look + kKept < looks_; });
  }
  take_steps(worker);
}

void StillParameters::follow(const StateHash& state, std::uint64_t step) {
  hashed_ = true;
  const auto [at, fresh] =
      held_.try_emplace(mix64(state.value ^ mix64(state.group)), Held{.step = step});
  Held& held = at->second;
  const bool ought_to_differ = trained_ > held.trained;
  held.look = looks_;
  held.trained = trained_;
  if (layers_.size() < kGroups || layers_.contains(state.group)) {
    Layer& layer = layers_[state.group];
    if (fresh || layer.since == 0) layer = {.since = looks_, .rested = layer.rested};
    layer.sharded = state.shard != 0;
    if (!fresh && layer.repeats++ == 0) layer.first_step = held.step;
  }
  if (fresh) {
    moved_ = moved_ || looks_ > kParts;
    unchanged_ = repeats_ = taken_ = 0;
    trained_before_ = trained_;
  } else if (ought_to_differ) {
    first_step_ = repeats_++ == 0 ? held.step : std::min(first_step_, held.step);
  }
}

// Counts the steps since the previous record that should have changed the rank's parameters.
void StillParameters::take_steps(const WorkerRecord& worker) {
  const double rate = learning_rate(worker);
  const std::uint64_t before = std::exchange(steps_, worker.optimizer_step);
  const std::uint64_t others = value_of(worker, FingerprintKind::kStepsOfOthers);
  const std::uint64_t own = worker.optimizer_step > before ? worker.optimizer_step - before : 0;
  const std::uint64_t steps = std::max(others, rate > 0 ? own : 0);
  // A program that steps without an optimizer of torch's reports gradients of what it trains (in
  // C++, frozen parameters are buffers): other layers that move show that its rate is not 0. An
  // optimizer that presum does not know may have a rate of 0 for some layers.
  const bool moves_all =
      std::isnan(rate) ? own > 0 && others == 0 && unchanged_ < kRound : steps > 0;
  if (!moves_all || !has_gradient(worker)) layers_.clear();
  if (steps == 0 || !has_gradient(worker)) return;
  ++trained_;
  taken_ += steps;
}

void StillParameters::rests(std::uint64_t group) {
  const auto found = layers_.find(group);
  if (found != layers_.end()) found->second.rested = looks_;
}

const StillParameters::Layer* StillParameters::still_layer(std::uint64_t group) const {
  const auto found = layers_.find(group);
  if (found == layers_.end()) return nullptr;
  const Layer& layer = found->second;
  const bool stood = layer.repeats > 0 && looks_ - layer.since >= kKept;
  return stood ? &layer : nullptr;
}

}  // namespace presum::checks
