// SPDX-License-Identifier: Apache-2.0
#include "checks/gradient/other_sizes.h"

#include <algorithm>
#include <cmath>

#include "checks/data/token_targets.h"
#include "detect/statistics.h"

namespace presum::checks {
namespace {

using detect::Statistic;

constexpr double kWeighted = 0.9;  // of all steps
constexpr double kSlack = 1.05;

// Up to the slack; the limits can be in any order.
bool between(double x, double a, double b) {
  return x * kSlack >= std::min(a, b) && x <= kSlack * std::max(a, b);
}

}  // namespace

void OtherSizes::see(const StepRecord& record) {
  const auto known = [](const WorkerRecord& w) { return w.targets > 0; };
  const bool targets = std::ranges::all_of(record.workers, known);
  shares_.see(record, [&](const WorkerRecord& w) { return targets ? w.targets : w.samples.rows; });
  for (const WorkerRecord& w : record.workers) {
    Means& means = means_[w.replica];
    means.norm.add(detect::log_norm(w, w.grad_norm));
    means.cosine.add(w.cosine_to_others);
  }
  ++steps_;
  weighted_ += (targets ? weighs_targets_alike(record) : weighs_samples_alike(record)) ? 1 : 0;
}

bool OtherSizes::explain(const detect::Alarm& alarm) const {
  const std::uint32_t replica = alarm.replicas.front();
  const auto ratio = shares_.apart(replica);
  const bool weighted = static_cast<double>(weighted_) >= kWeighted * static_cast<double>(steps_);
  if (!ratio || !weighted) return false;
  const double norm = std::isnan(alarm.ratio) ? own_by_others(replica).norm : alarm.ratio;
  switch (alarm.statistic) {
    case Statistic::kNorm:
    case Statistic::kGroupNorm:
    case Statistic::kResidual:
      return between(norm, 1, 1 / std::sqrt(*ratio));
    case Statistic::kDirection:
      return between(own_by_others(replica).cosine, 1, std::sqrt(*ratio));
    default:
      return false;
  }
}

OtherSizes::Ratios OtherSizes::own_by_others(std::uint32_t replica) const {
  Mean norm, cosine;
  for (const auto& [other, means] : means_) {
    if (other == replica) continue;
    norm.add(means.norm.value());
    cosine.add(means.cosine.value());
  }
  const Means& own = *means_.find(replica);
  return {std::exp(own.norm.value() - norm.value()), own.cosine.value() / cosine.value()};
}

}  // namespace presum::checks
