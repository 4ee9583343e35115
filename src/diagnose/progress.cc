// SPDX-License-Identifier: Apache-2.0
#include "diagnose/progress.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "base/hash.h"

namespace presum::diagnose {
namespace {

constexpr std::uint64_t kRound = 25;  // records in which all of a model is hashed once
constexpr std::uint64_t kKept = 2 * kRound;

double learning_rate(const WorkerRecord& worker) {
  const std::uint64_t* rate = worker.fingerprint_of(FingerprintKind::kLearningRate);
  return rate == nullptr ? kNaN : std::bit_cast<double>(*rate);
}

}  // namespace

void NoProgress::update(const StepContext& context, SignalLog& log) {
  if (context.workers() == 0) return;
  const WorkerRecord& worker = context.record.workers.front();
  if (std::isnan(learning_rate(worker))) {
    return log.cannot(Check::kNoProgress, "No optimiser with a learning rate is known.");
  }
  const bool trained = trains(worker);
  follow(worker, context.record.step);
  if (!trained) begin(worker);
  if (!hashed_) return log.cannot(Check::kNoProgress, "No parameters were hashed.");
  if (looks_ <= kRound) {
    return log.waits(Check::kNoProgress, "No part of the model was hashed twice yet.");
  }
  log.checked(Check::kNoProgress);
  if (unchanged_ >= kRound && repeats_ > 0) report(context, log);
}

// Whether what the worker did since the record before should have changed its parameters.
bool NoProgress::trains(const WorkerRecord& worker) {
  const std::uint64_t before = std::exchange(steps_, worker.optimizer_step);
  return worker.optimizer_step > before && has_gradient(worker) && learning_rate(worker) > 0;
}

void NoProgress::follow(const WorkerRecord& worker, std::uint64_t step) {
  ++looks_;
  ++unchanged_;
  for (const StateHash& state : worker.states) {
    if (state.kind != StateHash::Kind::kParameters) continue;
    hashed_ = true;
    const auto [at, fresh] =
        held_.try_emplace(mix64(state.value ^ mix64(state.group)), Held{.step = step});
    at->second.look = looks_;
    if (fresh) {
      begin(worker);
    } else {
      first_step_ = repeats_++ == 0 ? at->second.step : std::min(first_step_, at->second.step);
    }
  }
  if (looks_ % kKept == 0) {
    std::erase_if(held_, [&](const auto& held) { return held.second.look + kKept < looks_; });
  }
}

void NoProgress::begin(const WorkerRecord& worker) {
  unchanged_ = repeats_ = 0;
  steps_before_ = worker.optimizer_step;
}

void NoProgress::report(const StepContext& context, SignalLog& log) const {
  const WorkerRecord& worker = context.record.workers.front();
  Signal signal =
      sighting(Check::kNoProgress, context.record.step, {all_ranks(context.record), true});
  signal.first_step = std::min(first_step_, context.record.step);
  signal.confidence = 0.95;
  signal.title = "{Ranks} took optimiser steps that changed no parameter";
  signal.evidence = {
      {"steps_without_change", static_cast<std::int64_t>(worker.optimizer_step - steps_before_)},
      {"learning_rate", learning_rate(worker)}};
  log.add(std::move(signal));
}

}  // namespace presum::diagnose
