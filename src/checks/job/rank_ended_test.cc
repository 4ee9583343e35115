// SPDX-License-Identifier: Apache-2.0
#include "checks/job/rank_ended.h"

#include <gtest/gtest.h>

#include "checks/engine/testing.h"

namespace presum::checks {
namespace {

RankEnd killed() { return {.ranks = {1}, .how = "was killed by SIGKILL", .last_step = 40}; }

TEST(RankEnded, WhatIsKnownLaterStandsInThePlaceOfWhatWasKnownBefore) {
  SignalLog log;
  report_end(RankEnd{.ranks = {0}, .how = "ended by RuntimeError"}, log);
  const auto id = log.signals().front().id;
  report_end(killed(), log);
  ASSERT_EQ(log.signals().size(), 1U);
  EXPECT_NE(log.signals().front().id, id);
  EXPECT_EQ(log.signals().front().ranks, (Ranks{1}));
  EXPECT_EQ(log.signals().front().severity, Severity::kCritical);
  EXPECT_EQ(log.signals().front().first_step, 40U);
  report_end(std::nullopt, log);
  EXPECT_TRUE(log.signals().empty());
}

TEST(RankEnded, TheSentenceSaysWhoHowAndWhen) {
  const auto said = [](const RankEnd& end) {
    SignalLog log;
    report_end(end, log);
    return sentence_of(log.signals().front());
  };
  EXPECT_EQ(said(killed()), "Rank 1 was killed by SIGKILL after step 40");
  EXPECT_EQ(said({.ranks = {1, 2}, .how = "does not answer", .last_step = 3}),
            "Ranks 1-2 do not answer after step 3");
  EXPECT_EQ(said({.ranks = {0}, .how = "ended by KeyError: 'x'"}),
            "Rank 0 ended by KeyError: 'x', before its first step");
  EXPECT_EQ(said({.ranks = {3}, .how = "left the training", .last_step = 7, .left_in_order = true}),
            "Rank 3 left the training after step 7, before the others");
}

TEST(RankEnded, MoreEvidenceOfOneEndIsNoNewFinding) {
  SignalLog log;
  report_end(killed(), log);
  const auto id = log.signals().front().id;
  RankEnd more = killed();
  more.then.emplace_back("rank 0", "ended by RuntimeError");
  report_end(more, log);
  ASSERT_EQ(log.signals().size(), 1U);
  EXPECT_EQ(log.signals().front().id, id);
  EXPECT_EQ(value_in(log.signals().front(), "then"),
            (nlohmann::json{{"rank 0", "ended by RuntimeError"}}));
}

}  // namespace
}  // namespace presum::checks
