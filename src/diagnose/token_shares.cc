// SPDX-License-Identifier: Apache-2.0
#include "diagnose/token_shares.h"

#include <algorithm>
#include <cmath>

namespace presum::diagnose {
namespace {

constexpr std::uint64_t kSteps = 10;
constexpr double kApart = 0.1823;  // log 1.2
constexpr double kOfSteps = 0.8;
constexpr std::size_t kWorkers = 65536;

}  // namespace

void TokenShares::see(const StepRecord& record) {
  const auto& workers = record.workers;
  const bool known = std::ranges::all_of(workers, [](const auto& w) { return w.tokens > 0; });
  if (!known || workers.size() < 2) return;
  double sum = 0;
  for (const WorkerRecord& w : workers) sum += std::log(static_cast<double>(w.tokens));
  for (const WorkerRecord& w : workers) {
    const double own = std::log(static_cast<double>(w.tokens));
    const double ratio = own - (sum - own) / static_cast<double>(workers.size() - 1);
    if (shares_.size() >= kWorkers && !shares_.contains(w.replica)) continue;
    Share& share = shares_[w.replica];
    share.log_ratio += ratio;
    ++share.steps;
    share.above += ratio > 0;
  }
}

std::optional<double> TokenShares::apart(std::uint32_t replica) const {
  const auto found = shares_.find(replica);
  if (found == shares_.end() || found->second.steps < kSteps) return {};
  const Share& share = found->second;
  const auto steps = static_cast<double>(share.steps);
  const double mean = share.log_ratio / steps;
  const auto above = static_cast<double>(share.above);
  const double same_side = mean > 0 ? above : steps - above;
  if (std::abs(mean) < kApart || same_side < kOfSteps * steps) return {};
  return std::exp(mean);
}

}  // namespace presum::diagnose
