// SPDX-License-Identifier: Apache-2.0
#include "diagnose/rank_ended.h"

#include <utility>

namespace presum::diagnose {

void RankEnded::update(const StepContext& context, SignalLog& log) {
  ranks_ = context.record.workers_expected;
  if (ranks_ < 2) return log.cannot(Check::kRankEnded, "One rank: no other can end before it.");
  if (beats_) {
    return log.waits(Check::kRankEnded, "Not all ranks have said how they end.");
  }
  log.cannot(Check::kRankEnded, "No rank told where it stands: programs in C++ do not.");
}

void RankEnded::farewell(std::uint32_t rank, const FinalState& /*last*/, const Roster& /*roster*/,
                         SignalLog& log) {
  insert(left_, rank);
  if (beats_ && ranks_ > 1 && left_.size() >= ranks_) log.checked(Check::kRankEnded);
}

void RankEnded::report(const std::optional<RankEnd>& end, SignalLog& log) {
  if (!end) return log.replace(Check::kRankEnded, std::nullopt);
  Signal signal = sighting(Check::kRankEnded, end->step, {end->ranks, end->everyone}, 1);
  signal.severity = end->severity;
  signal.title = end->title;
  signal.evidence = end->evidence;
  log.replace(Check::kRankEnded, std::move(signal));
}

}  // namespace presum::diagnose
