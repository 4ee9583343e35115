// SPDX-License-Identifier: Apache-2.0
#include "checks/data/token_shares.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace presum::checks {
namespace {

constexpr std::uint64_t kShareSteps = 10;
constexpr double kApart = 0.1823;  // log 1.2
constexpr double kOfSteps = 0.8;

}  // namespace

std::string sentence(const OtherTokens& seen, const Who& who) {
  const auto of = seen.of_rank ? fmt::format("Rank {}", *seen.of_rank) : who.words();
  const auto beside = seen.of_rank ? fmt::format("rank {}", *seen.beside_rank) : "the others";
  return fmt::format("{} had {:.3g} times as many target tokens as {}", of, seen.tokens_ratio,
                     beside);
}

void TokenShares::see(const StepRecord& record,
                      const std::function<std::uint64_t(const WorkerRecord&)>& count_of) {
  const auto& workers = record.workers;
  const bool known = std::ranges::all_of(workers, [&](const auto& w) { return count_of(w) > 0; });
  if (!known || workers.size() < 2) return;
  double sum = 0;
  for (const WorkerRecord& w : workers) sum += std::log(static_cast<double>(count_of(w)));
  for (const WorkerRecord& w : workers) {
    const double own = std::log(static_cast<double>(count_of(w)));
    const double ratio = own - (sum - own) / static_cast<double>(workers.size() - 1);
    Share& share = shares_[w.replica];
    share.log_ratio += ratio;
    ++share.steps;
    share.above += ratio > 0;
  }
}

std::optional<double> TokenShares::apart(std::uint32_t replica) const {
  const Share* share = shares_.find(replica);
  if (share == nullptr || share->steps < kShareSteps) return {};
  const auto steps = static_cast<double>(share->steps);
  const double mean = share->log_ratio / steps;
  const auto above = static_cast<double>(share->above);
  const double same_side = mean > 0 ? above : steps - above;
  if (std::abs(mean) < kApart || same_side < kOfSteps * steps) return {};
  return std::exp(mean);
}

}  // namespace presum::checks
