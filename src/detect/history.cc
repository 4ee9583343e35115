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

}  // namespace

std::vector<EventWatch::Event> EventWatch::update(const RankPanel& panel, std::size_t workers,
                                                  std::uint64_t step) {
  std::vector<Event> events;
  const double threshold = std::max(kLeastDistance, kBeyondPeak * peak_);
  double largest = 0;
  for (std::uint32_t i = 0; i < workers; ++i) {
    const auto reading = panel.reading(i);
    if (!reading || panel.scale() == 0 || panel.blamed(i, step)) continue;
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

}  // namespace presum::detect
