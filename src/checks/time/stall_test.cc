// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "checks/engine/rules.h"
#include "checks/engine/testing.h"

namespace presum::checks {
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

// The findings about them, one after the other.
Signal said(const std::vector<Stall>& stalls) {
  SignalLog log;
  for (const Stall& stall : stalls) report_stall(stall, log);
  EXPECT_EQ(log.signals().size(), 1U);
  return log.signals().empty() ? Signal{} : log.signals().front();
}

TEST(Stalls, ASentenceAndTheStackOfWhoIsWaitedFor) {
  const Signal s = said({stall()});
  EXPECT_EQ(s.check, &kStall);
  EXPECT_EQ(s.severity, Severity::kCritical);
  EXPECT_EQ(s.ranks, (Ranks{2}));
  EXPECT_EQ(sentence_of(s),
            "The job stalled for 62 s at step 12: Rank 2 is in evaluate() of train.py:88 while "
            "ranks 0-1 wait");
  EXPECT_EQ(number_of(s, "seconds"), 61.7);
  EXPECT_EQ(value_in(s, "stacks"),
            (nlohmann::json{{"rank 2", "train.py:88 evaluate < train.py:9 main"}}));
}

TEST(Stalls, OneThatWentOnIsAWarning) {
  Stall over = stall();
  over.over = true;
  over.seconds = 93;
  const Signal s = said({stall(), over});
  EXPECT_EQ(s.severity, Severity::kWarning);
  EXPECT_NE(sentence_of(s).find("93 s at step 12, then continued"), std::string::npos);
  EXPECT_EQ(number_of(s, "seconds"), 93);
  EXPECT_EQ(value_in(s, "stacks").size(), 1U);
}

TEST(Stalls, WhoWorksIsAWarningAndWhatMayBeMeantIsNothing) {
  Stall busy = stall();
  busy.busy = true;
  EXPECT_EQ(said({busy}).severity, Severity::kWarning);
  SignalLog log;
  Stall harmless = stall();
  harmless.harmless = true;
  report_stall(harmless, log);
  EXPECT_TRUE(log.signals().empty());
}

TEST(Stalls, WhereNobodyIsKnownToBeMissingAllAreNamed) {
  Stall unknown = stall();
  unknown.ranks.clear();
  EXPECT_TRUE(said({unknown}).everyone);
  EXPECT_EQ(said({unknown}).ranks, (Ranks{0, 1, 2}));
}

}  // namespace
}  // namespace presum::checks
