// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "diagnose/rules.h"

namespace presum::diagnose {
namespace {

Stall stall() {
  Stall out{.number = 1, .step = 12, .seconds = 61.7, .awaited = true};
  out.sentence = "Rank 2 is in evaluate() of train.py:88 while ranks 0-1 wait";
  out.ranks = {2};
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    StalledRank& r = out.all.emplace_back();
    r.rank = rank;
    r.last.stack = "train.py:88 evaluate\ntrain.py:9 main";
  }
  return out;
}

TEST(Stalls, ASentenceAndTheStackOfWhoIsWaitedFor) {
  SignalLog log;
  report_stall(stall(), log);
  ASSERT_EQ(log.signals().size(), 1U);
  const Signal& s = log.signals().front();
  EXPECT_EQ(s.check, Check::kStall);
  EXPECT_EQ(s.severity, Severity::kCritical);
  EXPECT_EQ(s.ranks, (Ranks{2}));
  EXPECT_EQ(s.title,
            "The job stood still for 62 s at step 12: Rank 2 is in evaluate() of train.py:88 while "
            "ranks 0-1 wait");
  ASSERT_EQ(s.evidence.size(), 2U);
  EXPECT_EQ(s.evidence[1].first, "rank_2_stack");
  EXPECT_EQ(std::get<std::string>(s.evidence[1].second), "train.py:88 evaluate < train.py:9 main");
}

TEST(Stalls, OneThatWentOnIsAWarning) {
  SignalLog log;
  report_stall(stall(), log);
  Stall over = stall();
  over.over = true;
  over.seconds = 93;
  report_stall(over, log);
  ASSERT_EQ(log.signals().size(), 1U);
  EXPECT_EQ(log.signals().front().severity, Severity::kWarning);
  EXPECT_NE(log.signals().front().title.find("93 s at step 12, and went on"), std::string::npos);
}

TEST(Stalls, WhoWorksIsAWarningAndWhatMayBeMeantIsNothing) {
  SignalLog log;
  Stall busy = stall();
  busy.busy = true;
  report_stall(busy, log);
  ASSERT_EQ(log.signals().size(), 1U);
  EXPECT_EQ(log.signals().front().severity, Severity::kWarning);
  SignalLog other;
  Stall harmless = stall();
  harmless.harmless = true;
  report_stall(harmless, other);
  EXPECT_TRUE(other.signals().empty());
}

TEST(Stalls, WhereNobodyIsKnownToBeMissingAllAreNamed) {
  SignalLog log;
  Stall unknown = stall();
  unknown.ranks.clear();
  report_stall(unknown, log);
  ASSERT_EQ(log.signals().size(), 1U);
  EXPECT_TRUE(log.signals().front().everyone);
  EXPECT_EQ(log.signals().front().ranks, (Ranks{0, 1, 2}));
}

}  // namespace
}  // namespace presum::diagnose
