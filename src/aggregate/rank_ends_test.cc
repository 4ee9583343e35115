// SPDX-License-Identifier: Apache-2.0
#include "aggregate/rank_ends.h"

#include <gtest/gtest.h>

#include <csignal>

namespace presum::aggregate {
namespace {

constexpr const char* kGone =
    "ended by RuntimeError: [gloo/transport/tcp/pair.cc:538] Connection "
    "closed by peer [127.0.0.1]:48213";

RankEnds job(std::uint32_t ranks, std::uint64_t steps = 40) {
  RankEnds out;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    out.hello(rank);
    out.step(rank, steps);
  }
  return out;
}

void expect(const RankEnds& ends, const checks::Ranks& ranks, Severity severity,
            const std::string& words) {
  const auto end = ends.first();
  ASSERT_TRUE(end);
  EXPECT_EQ(end->ranks, ranks);
  EXPECT_EQ(end->severity, severity);
  EXPECT_EQ(end->words(), words);
}

TEST(RankEnds, NothingIsSaidOfRanksThatLeaveInOrder) {
  RankEnds ends = job(2);
  EXPECT_FALSE(ends.first());
  ends.left(1, "");
  EXPECT_FALSE(ends.first());
  ends.process_ended(1, {}, false);
  ends.left(0, "");
  ends.close();
  EXPECT_FALSE(ends.first());
}

TEST(RankEnds, TheExceptionThatCameFirstIsTheCauseOfTheOthers) {
  RankEnds ends = job(3);
  ends.left(1, "ended by ValueError: bad batch");
  ends.left(0, kGone);
  ends.left(2, kGone);
  expect(ends, {1}, Severity::kCritical, "ended by ValueError: bad batch, after step 40");
  EXPECT_EQ(ends.first()->then.size(), 2U);
}

TEST(RankEnds, AKilledProcessIsTheCauseThoughOthersFailedBefore) {
  RankEnds ends = job(2);
  ends.left(0, kGone);
  ends.process_ended(1, {.signal = SIGKILL}, false);
  expect(ends, {1}, Severity::kCritical, "was killed by SIGKILL after step 40");
}

TEST(RankEnds, OneExceptionOfAllRanksIsNoDisagreement) {
  RankEnds ends = job(2);
  ends.left(0, "ended by ValueError: bad batch 17");
  expect(ends, {0}, Severity::kCritical, "ended by ValueError: bad batch 17, after step 40");
  ends.left(1, "ended by ValueError: bad batch 18");
  expect(ends, {0, 1}, Severity::kInfo, "ended by ValueError: bad batch 17, after step 40");
  EXPECT_TRUE(ends.first()->everyone);
}

TEST(RankEnds, WhoLeavesBeforeTheOthersIsNamedWhereTheyFail) {
  RankEnds ends = job(2);
  ends.left(1, "");
  ends.step(0, 41);
  EXPECT_FALSE(ends.first());  // a shard may be shorter
  ends.left(0, kGone);
  expect(ends, {1}, Severity::kCritical, "left the training after step 40, before the others");
}

TEST(RankEnds, HowAProcessEndsAfterItHasLeftCountsWhereOthersFailForIt) {
  for (const ProcessEnd& end : {ProcessEnd{.exit_code = 3}, ProcessEnd{.signal = SIGSEGV}}) {
    RankEnds ends = job(2);
    ends.left(1, "");
    ends.process_ended(1, end, false);
    EXPECT_FALSE(ends.first());  // sys.exit(main()), or an interpreter that crashes during shutdown
    ends.left(0, kGone);
    EXPECT_EQ(ends.first()->ranks, (checks::Ranks{1}));
    EXPECT_EQ(ends.first()->severity, Severity::kCritical);
  }
}

TEST(RankEnds, WhatALauncherSendsIsAWarningAtMostAndWhatAPersonDoesANote) {
  RankEnds ends = job(2);
  ends.process_ended(1, {.signal = SIGTERM}, false);
  expect(ends, {1}, Severity::kInfo, "was killed by SIGTERM after step 40");
  ends.left(0, kGone);
  expect(ends, {1}, Severity::kWarning, "was killed by SIGTERM after step 40");
  RankEnds interrupted = job(2);
  interrupted.left(1, "ended by KeyboardInterrupt");
  interrupted.left(0, kGone);
  EXPECT_EQ(interrupted.first()->severity, Severity::kInfo);
}

TEST(RankEnds, AProcessThatVanishedHasPerhapsOnlyEnded) {
  RankEnds ends = job(2);
  ends.process_ended(1, {.exit_code = ProcessEnd::kUnknown}, false);
  expect(ends, {1}, Severity::kInfo,
         "is gone without a word: killed, crashed, or ended by os._exit(), after step 40");
  ends.left(0, kGone);
  EXPECT_EQ(ends.first()->severity, Severity::kCritical);
  RankEnds missed = job(2);
  missed.process_ended(1, {.exit_code = ProcessEnd::kUnknown}, true);
  EXPECT_EQ(missed.first()->severity, Severity::kCritical);
}

TEST(RankEnds, AWatchdogThatAbortsTheOthersIsNoCause) {
  RankEnds ends = job(3);
  ends.process_ended(1, {.signal = SIGABRT}, false);
  ends.process_ended(2, {.signal = SIGABRT}, false);
  ends.silent(0, "evaluate() of train.py:88");
  EXPECT_EQ(ends.first()->ranks, (checks::Ranks{0}));
  RankEnds crashed = job(2);
  crashed.process_ended(1, {.signal = SIGABRT}, false);
  crashed.left(0, kGone);
  EXPECT_EQ(crashed.first()->ranks, (checks::Ranks{1}));
}

TEST(RankEnds, WhoLeftLongAgoIsNotBlamed) {
  RankEnds ends = job(2);
  ends.left(1, "");
  ends.step(0, 400);
  ends.left(0, kGone);
  EXPECT_EQ(ends.first()->ranks, (checks::Ranks{0}));
}

TEST(RankEnds, RanksThatTrainAreAllThereAre) {
  RankEnds ends = job(1);
  ends.left(0, "ended by NameError: typo");  // of a notebook, after its training
  EXPECT_FALSE(ends.first());
}

TEST(RankEnds, OfAnotherHostOnlyThatNothingCameIsKnown) {
  RankEnds ends = job(3);
  ends.left(0, kGone);
  ends.left(2, kGone);
  ends.close();
  expect(ends, {1}, Severity::kCritical, "has not said goodbye after step 40");
  RankEnds silent = job(3);
  silent.silent(1, "evaluate() of train.py:88");
  silent.silent(2, "");
  EXPECT_FALSE(silent.first());
  silent.step(0, 50);
  silent.left(0, "");
  silent.close();
  EXPECT_EQ(silent.first()->ranks, (checks::Ranks{1, 2}));
}

TEST(RankEnds, ANetworkThatFailsForEveryoneIsNoEndOfOne) {
  RankEnds ends = job(2);
  ends.left(0, kGone);
  ends.left(1, kGone);
  ends.close();
  EXPECT_TRUE(ends.first()->everyone);
  EXPECT_EQ(ends.first()->severity, Severity::kCritical);
}

TEST(RankEnds, ARankThatBeginsAnewHasNotEnded) {
  RankEnds ends = job(2);
  ends.left(1, "ended by ValueError: once");
  ends.hello(1);
  EXPECT_FALSE(ends.first());
}

}  // namespace
}  // namespace presum::aggregate
