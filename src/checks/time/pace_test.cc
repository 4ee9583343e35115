// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <vector>

#include "checks/engine/rules.h"
#include "checks/engine/testing.h"

namespace presum::checks {
namespace {

using Spoil = std::function<void(std::uint64_t step, WorkerRecord&)>;

// The findings after this many steps of four ranks.
std::vector<Signal> paced(std::uint64_t steps, const Spoil& spoil) {
  SignalLog log;
  const auto rule = kPeriodicStall.make();
  const detect::StepAlarms alarms;
  const detect::TimeAlarms times;
  const Roster roster;
  const Draws draws;
  std::mt19937_64 random{11};
  for (std::uint64_t step = 0; step < steps; ++step) {
    StepRecord r;
    r.step = step;
    r.workers_expected = 4;
    log.begin_record();
    for (std::uint32_t i = 0; i < 4; ++i) {
      WorkerRecord& w = r.workers.emplace_back();
      w.rank = w.replica = i;
      w.tokens = 1000;
      w.times.seconds = {0.001, 0.03, 0.06, 0.01, 0.001, 0.002};
      for (double& x : w.times.seconds) x *= 1 + std::normal_distribution<>(0, 0.03)(random);
      spoil(step, w);
    }
    rule->update({r, {}, alarms, times, roster, draws, {}, {}, {}}, log);
  }
  return log.signals();
}

TEST(PeriodicStalls, AreNamedWithPeriodRankAndPhase) {
  const auto found = paced(300, [](std::uint64_t step, WorkerRecord& w) {
    if (step % 50 == 49 && w.rank == 0) w.times.of(Phase::kRest) += 3;
  });
  ASSERT_EQ(found.size(), 1U);
  const Signal& s = found.front();
  EXPECT_EQ(s.check, &kPeriodicStall);
  EXPECT_EQ(s.ranks, (Ranks{0}));
  EXPECT_FALSE(s.everyone);
  EXPECT_EQ(number_of(s, "period_steps"), 50);
  EXPECT_NE(sentence_of(s).find("rest"), std::string::npos);
  EXPECT_EQ(s.severity, Severity::kInfo);
}

TEST(PeriodicStalls, OfAllRanksAreEveryones) {
  const auto found = paced(200, [](std::uint64_t step, WorkerRecord& w) {
    if (step % 20 == 3) w.times.of(Phase::kRest) += 1;
  });
  ASSERT_EQ(found.size(), 1U);
  EXPECT_TRUE(found.front().everyone);
}

TEST(PeriodicStalls, InAQueueForAProcessorAreSaidToBe) {
  const auto found = paced(300, [](std::uint64_t step, WorkerRecord& w) {
    w.times.queued = step % 50 == 49 ? 2.9 : 0.01;
    if (step % 50 == 49) w.times.of(Phase::kForward) += 3;
  });
  ASSERT_EQ(found.size(), 1U);
  const Signal& s = found.front();
  EXPECT_NE(sentence_of(s).find("waiting for a processor"), std::string::npos) << sentence_of(s);
  EXPECT_EQ(sentence_of(s).find("phase"), std::string::npos) << sentence_of(s);
  EXPECT_FALSE(s.remedy.empty());
}

TEST(PeriodicStalls, AtNoRegularDistanceAreNone) {
  std::mt19937_64 random(2);
  std::uint64_t next = 30;
  const auto found = paced(600, [&](std::uint64_t step, WorkerRecord& w) {
    if (w.rank != 0 || step != next) return;
    w.times.of(Phase::kRest) += 1;
    next += 5 + random() % 70;
  });
  EXPECT_TRUE(found.empty());
}

TEST(PeriodicStalls, BelowTwiceTheUsualTimeAreNone) {
  const auto found = paced(300, [](std::uint64_t step, WorkerRecord& w) {
    if (step % 50 == 49) w.times.of(Phase::kRest) += 0.08;
  });
  EXPECT_TRUE(found.empty());
}

TEST(GradualSlowing, IsNamed) {
  const auto found = paced(800, [](std::uint64_t step, WorkerRecord& w) {
    w.times.of(Phase::kForward) += 0.0001 * static_cast<double>(step);
  });
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found.front().check, &kGradualSlowing);
  EXPECT_EQ(sentence_of(found.front()).find("All 4 ranks became slower and slower: the fastest"),
            0U);
  EXPECT_GT(number_of(found.front(), "times_as_long"), 1.3);
  EXPECT_TRUE(found.front().everyone);
}

TEST(GradualSlowing, LongerBatchesAreNone) {
  const auto found = paced(1000, [](std::uint64_t step, WorkerRecord& w) {
    const double factor = 1 + static_cast<double>(step) / 500;
    w.tokens = static_cast<std::uint64_t>(1000 * factor);
    for (double& s : w.times.seconds) s *= factor;
  });
  EXPECT_TRUE(found.empty());
}

TEST(GradualSlowing, OneStepUpOrOneSlowWorkerIsNone) {
  const auto found = paced(1000, [](std::uint64_t step, WorkerRecord& w) {
    if (step > 500) w.times.of(Phase::kForward) += 0.2;
    if (w.rank == 3) w.times.of(Phase::kRest) += 0.001 * static_cast<double>(step);
  });
  EXPECT_TRUE(found.empty());
}

TEST(GradualSlowing, AQueueForProcessorsIsNone) {
  const auto found = paced(1000, [](std::uint64_t step, WorkerRecord& w) {
    w.times.queued = 0.0003 * static_cast<double>(step);
    w.times.of(Phase::kForward) += w.times.queued;
  });
  EXPECT_TRUE(found.empty());
}

}  // namespace
}  // namespace presum::checks
