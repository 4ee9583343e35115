// SPDX-License-Identifier: Apache-2.0
#include "diagnose/rank_ended.h"

#include <optional>
#include <utility>

#include "diagnose/rules.h"

namespace presum::diagnose {
namespace {

class RankEnded final : public Rule {
 public:
  void update(const StepContext& context, SignalLog& log) override {
    ranks_ = context.record.workers_expected;
    if (ranks_ < 2) return log.cannot(Check::kRankEnded, "One rank: no other can end before it.");
    if (beats_) return log.waits(Check::kRankEnded, "Not all ranks have said how they end.");
    log.cannot(Check::kRankEnded, "No rank told where it stands: programs in C++ do not.");
  }

  void farewell(std::uint32_t rank, const FinalState& /*last*/, const Roster& /*roster*/,
                SignalLog& log) override {
    insert(left_, rank);
    if (beats_ && ranks_ > 1 && left_.size() >= ranks_) log.checked(Check::kRankEnded);
  }

  void beats() override { beats_ = true; }

 private:
  bool beats_ = false;
  std::uint32_t ranks_ = 0;  // that are expected
  Ranks left_;
};

}  // namespace

void report_end(const std::optional<RankEnd>& end, SignalLog& log) {
  if (!end) return log.replace(Check::kRankEnded, std::nullopt);
  Signal signal = sighting(Check::kRankEnded, end->step, {end->ranks, end->everyone}, 1);
  signal.severity = end->severity;
  signal.title = end->title;
  signal.evidence = end->evidence;
  log.replace(Check::kRankEnded, std::move(signal));
}

std::unique_ptr<Rule> make_rank_ended() { return std::make_unique<RankEnded>(); }

}  // namespace presum::diagnose
