// SPDX-License-Identifier: Apache-2.0
#include "presum/observer.h"

#include <utility>

#include "base/try.h"
#include "step/steps.h"

namespace presum {
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

void Observer::begin_states() { state_->steps.contents().begin_states(); }

Status Observer::state(StateHash::Kind kind, std::uint32_t index, const void* data,
                       std::size_t count, std::uint32_t element_bytes, std::uint32_t shard) {
  return state_->steps.contents().state(state_->steps.layout(), kind, index, data, count,
                                        element_bytes, shard);
}

Packet Observer::end_step(const StepEnd& end) { return step::end_step(state_->steps, end); }

Packet Observer::goodbye(std::uint64_t optimizer_steps) const {
  return state_->steps.goodbye(optimizer_steps);
}

}  // namespace presum
