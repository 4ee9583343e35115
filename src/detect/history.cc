// SPDX-License-Identifier: Apache-2.0
#include "detect/history.h"

#include <algorithm>
#include <cmath>

namespace presum::detect {
namespace {

constexpr std::uint64_t kWarmUp = 100;
constexpr double kLeastDistance = 10;
constexpr double kBeyondPeak = 1.5;
constexpr double kPeakGrowth = 2;        // one absurd step does not hide all later ones
constexpr double kPeakDecay = 0.999997;  // halves in 230,000 steps
constexpr double kFactor = 10;           // an event is this much larger than what matters for long

constexpr double kSameCosine = 0.9999;
constexpr double kSameNorms = 1e-3;
constexpr std::uint64_t kSameSteps = 10;

Alarm event_of(const RankPanel& panel, std::uint32_t worker, const Reading& reading,
               std::uint64_t step) {
  const Statistic statistic = panel.spec().statistic;
  return {.kind = Alarm::Kind::kEvent,
          .statistic = statistic,
          .high = reading.effect > 0,
          .replicas = {worker},
          .first_step = step,
          .step = step,
          .evidence = std::abs(reading.effect),
          .effect = reading.effect,
          .ratio = statistic == Statistic::kNorm ? std::exp(reading.difference) : kNaN};
}

}  // namespace

void History::update(const StepRecord& record, const WorkerPanels& panels, std::uint64_t cooldown,
                     std::vector<Alarm>& alarms) {
  raise_events(panels.of(Statistic::kLoss), record.step, cooldown, alarms);
  raise_events(panels.of(Statistic::kNorm), record.step, cooldown, alarms);
  raise_same_work(record, cooldown, alarms);
}

void History::raise_events(const RankPanel& panel, std::uint64_t step, std::uint64_t cooldown,
                           std::vector<Alarm>& alarms) {
  const std::size_t which = panel.spec().statistic == Statistic::kNorm ? 1 : 0;
  double& peak = peaks_[which];
  const double threshold = std::max(kLeastDistance, kBeyondPeak * peak);
  double largest = 0;
  for (std::uint32_t i = 0; i < panel.workers(); ++i) {
    const auto reading = panel.reading(i);
    if (!reading || panel.scale() == 0 || panel.memory().blamed(i, step)) continue;
    const double distance = std::abs(reading->effect);
    largest = std::max(largest, distance);
    const bool matters = std::abs(reading->difference) >= kFactor * panel.spec().least_difference;
    if (panel.steps() <= kWarmUp || distance < threshold || !matters) continue;
    if (cooling(event_raised_at_[which * workers_ + i], step, cooldown)) continue;
    alarms.push_back(event_of(panel, i, *reading, step));
  }
  const double most = std::max(kLeastDistance, kPeakGrowth * peak);
  peak = std::max(peak * kPeakDecay, std::min(largest, most));
}

void History::raise_same_work(const StepRecord& record, std::uint64_t cooldown,
                              std::vector<Alarm>& alarms) {
  const bool same = record.workers.size() >= 2 &&
                    record.workers.size() == record.workers_expected &&
                    record.cosine_mean >= kSameCosine && record.grad_norm_cv <= kSameNorms;
  if (same && same_steps_ == 0) same_since_ = record.step;
  same_steps_ = same ? same_steps_ + 1 : 0;
  if (same_steps_ < kSameSteps) return;
  same_steps_ = 0;
  if (cooling(same_raised_at_[0], record.step, cooldown)) return;
  alarms.push_back({.kind = Alarm::Kind::kTooConsistent,
                    .statistic = Statistic::kDirection,
                    .first_step = same_since_,
                    .step = record.step});
}

void History::restart() {
  same_steps_ = same_since_ = 0;
  std::ranges::fill(event_raised_at_, 0);
  std::ranges::fill(same_raised_at_, 0);
}

}  // namespace presum::detect
