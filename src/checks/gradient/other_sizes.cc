// SPDX-License-Identifier: Apache-2.0
#include "checks/gradient/other_sizes.h"

#include <algorithm>
#include <cmath>

#include "checks/data/token_targets.h"
#include "checks/engine/mean.h"

namespace presum::checks {
namespace {

using detect::Statistic;

constexpr std::uint64_t kWeighted = 10;  // steps in a row
constexpr double kRecent = 0.1;          // the last step's share of a mean
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
    double& mean = cosines_[w.replica];
    if (std::isfinite(w.cosine_to_others)) mean += kRecent * (w.cosine_to_others - mean);
  }
  weighted_.see(targets ? weighs_targets_alike(record) : weighs_samples_alike(record), record.step);
}

bool OtherSizes::explain(const detect::Alarm& alarm) const {
  const std::uint32_t replica = alarm.replicas.front();
  const auto ratio = shares_.apart(replica);
  if (!ratio || weighted_.length < kWeighted) return false;
  switch (alarm.statistic) {
    case Statistic::kNorm:
    case Statistic::kGroupNorm:
      return between(alarm.ratio, 1, 1 / std::sqrt(*ratio));
    case Statistic::kDirection:
      return alarm.high == (*ratio > 1) && between(cosine_ratio(replica), 1, std::sqrt(*ratio));
    default:
      return false;
  }
}

double OtherSizes::cosine_ratio(std::uint32_t replica) const {
  Mean others;
  for (const auto& [other, cosine] : cosines_) {
    if (other != replica) others.add(cosine);
  }
  return *cosines_.find(replica) / others.value();
}

}  // namespace presum::checks
