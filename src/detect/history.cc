// SPDX-License-Identifier: Apache-2.0
#include "detect/history.h"

#include <algorithm>
#include <cmath>
#include <utility>

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

// Whether the same was raised just now; if not, it counts as raised at this step.
bool cooling(std::uint64_t& raised_at, std::uint64_t step, std::uint64_t cooldown) {
  if (raised_at != 0 && step + 1 - raised_at <= cooldown) return true;
  raised_at = step + 1;
  return false;
}

}  // namespace

std::vector<OutlyingSteps::Event> OutlyingSteps::update(const RankPanel& panel,
                                                        std::uint64_t step) {
  std::vector<Event> events;
  const double threshold = std::max(kLeastDistance, kBeyondPeak * peak_);
  double largest = 0;
  for (std::uint32_t i = 0; i < panel.workers(); ++i) {
    const auto reading = panel.reading(i);
    if (!reading || panel.scale() == 0 || panel.memory().blamed(i, step)) continue;
    const double distance = std::abs(reading->effect);
    largest = std::max(largest, distance);
    const bool matters = std::abs(reading->difference) >= kFactor * panel.spec().least_difference;
    if (panel.steps() > kWarmUp && distance >= threshold && matters)
      events.push_back({i, *reading});
  }
  const double most = std::max(kLeastDistance, kPeakGrowth * peak_);
  peak_ = std::max(peak_ * kPeakDecay, std::min(largest, most));
  return events;
}

std::optional<std::uint64_t> SameWork::update(const StepRecord& record) {
  const bool same = record.workers.size() >= 2 &&
                    record.workers.size() == record.workers_expected &&
                    record.cosine_mean >= kSameCosine && record.grad_norm_cv <= kSameNorms;
  if (!same) {
    streak_ = 0;
    return std::nullopt;
  }
  if (streak_++ == 0) first_ = record.step;
  if (streak_ < kSameSteps) return std::nullopt;
  streak_ = 0;
  return first_;
}

History::History(std::size_t workers)
    : workers_(workers), event_raised_at_(2 * workers, 0), same_raised_at_(1, 0) {}

void History::update(const StepRecord& record, const WorkerPanels& panels, std::uint64_t cooldown,
                     std::vector<Alarm>& alarms) {
  raise_events(panels.of(Statistic::kLoss), outlying_[0], record.step, cooldown, alarms);
  raise_events(panels.of(Statistic::kNorm), outlying_[1], record.step, cooldown, alarms);
  const auto first = same_work_.update(record);
  if (!first || cooling(same_raised_at_[0], record.step, cooldown)) return;
  Alarm alarm;
  alarm.kind = Alarm::Kind::kTooConsistent;
  alarm.statistic = Statistic::kDirection;
  alarm.first_step = *first;
  alarm.step = record.step;
  alarms.push_back(std::move(alarm));
}

void History::raise_events(const RankPanel& panel, OutlyingSteps& outlying, std::uint64_t step,
                           std::uint64_t cooldown, std::vector<Alarm>& alarms) {
  const bool norm = panel.spec().statistic == Statistic::kNorm;
  for (const auto& event : outlying.update(panel, step)) {
    auto& raised_at = event_raised_at_[(norm ? workers_ : 0) + event.worker];
    if (cooling(raised_at, step, cooldown)) continue;
    Alarm alarm;
    alarm.kind = Alarm::Kind::kEvent;
    alarm.statistic = panel.spec().statistic;
    alarm.high = event.reading.effect > 0;
    alarm.replicas = {event.worker};
    alarm.first_step = alarm.step = step;
    alarm.evidence = std::abs(event.reading.effect);
    alarm.effect = event.reading.effect;
    if (norm) alarm.ratio = std::exp(event.reading.difference);
    alarms.push_back(std::move(alarm));
  }
}

void History::restart() {
  same_work_ = {};
  std::ranges::fill(event_raised_at_, 0);
  std::ranges::fill(same_raised_at_, 0);
}

}  // namespace presum::detect
