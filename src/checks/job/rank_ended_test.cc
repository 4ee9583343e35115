// SPDX-License-Identifier: Apache-2.0
#include "checks/job/rank_ended.h"

#include <gtest/gtest.h>

namespace presum::checks {
namespace {

RankEnd killed() {
  return {.ranks = {1}, .step = 40, .title = "{Ranks} was killed by SIGKILL after step 40"};
}

TEST(RankEnded, WhatIsKnownLaterStandsInThePlaceOfWhatWasKnownBefore) {
  SignalLog log;
  report_end(RankEnd{.ranks = {0}, .title = "{Ranks} ended by RuntimeError"}, log);
  report_end(killed(), log);
  ASSERT_EQ(log.signals().size(), 1U);
  EXPECT_EQ(log.signals().front().ranks, (Ranks{1}));
  EXPECT_EQ(log.signals().front().severity, Severity::kCritical);
  EXPECT_EQ(log.signals().front().first_step, 40U);
  report_end(std::nullopt, log);
  EXPECT_TRUE(log.signals().empty());
}

TEST(RankEnded, MoreEvidenceOfOneEndIsNoNewFinding) {
  SignalLog log;
  report_end(killed(), log);
  const auto id = log.signals().front().id;
  RankEnd more = killed();
  more.evidence.emplace_back("then_rank_0", "ended by RuntimeError");
  report_end(more, log);
  ASSERT_EQ(log.signals().size(), 1U);
  EXPECT_EQ(log.signals().front().id, id);
  EXPECT_EQ(log.signals().front().evidence.size(), 1U);
}

}  // namespace
}  // namespace presum::checks
