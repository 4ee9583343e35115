// SPDX-License-Identifier: Apache-2.0
#include "detect/history.h"

#include <algorithm>
#include <cmath>

namespace presum::detect {
namespace {

constexpr std::uint64_t kWarmUp = 100;
constexpr double kLeastDistance = 10;
constexpr double kBeyondPeak = 1.5;
// Limits growth, so that one absurd step does not hide all later ones.
constexpr double kPeakGrowth = 2;
constexpr double kPeakDecay = 0.999997;  // half-life: 230,000 steps
constexpr double kFactor = 10;           // an event's least difference, relative to the panel's

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

void History::update(std::uint64_t step, const WorkerPanels& panels, std::uint64_t cooldown,
                     std::vector<Alarm>& alarms) {
  raise_events(panels.of(Statistic::kLoss), step, cooldown, alarms);
  raise_events(panels.of(Statistic::kNorm), step, cooldown, alarms);
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

void History::restart() { std::ranges::fill(event_raised_at_, 0); }

}  // namespace presum::detect
