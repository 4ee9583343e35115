// SPDX-License-Identifier: Apache-2.0
#include "detect/slow_workers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

namespace presum::detect {
namespace {

struct Steps {
  explicit Steps(std::uint32_t workers, std::uint64_t seed = 1) : n(workers), random(seed) {}

  // `deviate`: the relative deviation of each rank's own time.
  StepRecord next(const std::function<double()>& deviate) {
    StepRecord r;
    r.workers_expected = r.workers_seen = n;
    r.step = step++;
    for (std::uint32_t i = 0; i < n; ++i) {
      WorkerRecord& w = r.workers.emplace_back();
      w.rank = w.replica = i;
      const double own = 0.1 * std::max(0.1, 1 + deviate());
      w.times.seconds = {0.1 * own, 0.3 * own, 0.5 * own, 0.1 * own, 0, 0.02};
      w.times.processor = own;
      w.times.queued = 0;
    }
    return r;
  }
  std::uint32_t n;
  std::uint64_t step = 0;
  std::mt19937_64 random;
};

double normal(Steps& s, double sd) { return std::normal_distribution<>(0, sd)(s.random); }
// Steps from the start of the fault to its alarm; 0 if there is no alarm, or if it names another
// rank.
std::uint64_t delay(std::uint32_t workers, double factor, double noise, std::uint64_t seed) {
  Steps steps(workers, seed);
  SlowWorkers detector({});
  constexpr int kHealthy = 100;
  for (int s = 0; s < kHealthy; ++s) {
    if (!detector.judge(steps.next([&] { return normal(steps, noise); })).raised.empty()) return 0;
  }
  for (std::uint64_t s = 1; s <= 200; ++s) {
    StepRecord r = steps.next([&] { return normal(steps, noise); });
    for (double& seconds : r.workers[1].times.seconds) seconds *= factor;
    const auto alarms = detector.judge(r).raised;
    if (alarms.empty()) continue;
    const Alarm& a = alarms.front();
    EXPECT_NEAR(a.ratio, factor, 0.3 * (factor - 1) + 0.01);
    return a.replicas == std::vector<std::uint32_t>{1} ? s : 0;
  }
  return 0;
}

class SlowWorkersFound : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(SlowWorkersFound, AtFivePercentWithinFiftySteps) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const auto steps = delay(GetParam(), 1.05, 0.02, seed);
    EXPECT_GT(steps, 0U) << seed;
    EXPECT_LE(steps, 50U) << seed;
  }
}

TEST_P(SlowWorkersFound, AtHalfAsLongAgainWithinTwelve) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const auto steps = delay(GetParam(), 1.5, 0.05, seed);
    EXPECT_GT(steps, 0U) << seed;
    EXPECT_LE(steps, 12U) << seed;
  }
}
INSTANTIATE_TEST_SUITE_P(Workers, SlowWorkersFound, ::testing::Values(4U, 8U));

class NoFalseAlarm : public ::testing::TestWithParam<std::uint32_t> {};

// A level low enough to test the guarantee: at most one alarm in `level` steps.
TEST_P(NoFalseAlarm, MoreOftenThanPromised) {
  constexpr double kLevel = 1e3;
  constexpr int kSteps = 100'000;
  Steps steps(GetParam(), 7);
  SlowWorkers detector({.level = kLevel});
  std::size_t alarms = 0;
  for (int s = 0; s < kSteps; ++s) {
    const auto now = [&] { return std::exp(normal(steps, 0.5)) - 1; };
    alarms += detector.judge(steps.next(now)).raised.size();
  }
  EXPECT_LE(alarms, std::size_t(kSteps / kLevel));
  RecordProperty("alarms", static_cast<int>(alarms));
}

INSTANTIATE_TEST_SUITE_P(Workers, NoFalseAlarm, ::testing::Values(2U, 4U, 8U));

TEST(SlowWorkers, AUniformlySlowJobIsQuiet) {
  Steps steps(4);
  SlowWorkers detector({});
  for (int s = 0; s < 500; ++s) {
    const double all = s < 250 ? 1 : 3;
    StepRecord r = steps.next([&] { return normal(steps, 0.02); });
    for (WorkerRecord& w : r.workers) {
      for (double& seconds : w.times.seconds) seconds *= all;
    }
    ASSERT_TRUE(detector.judge(r).raised.empty());
  }
}

TEST(SlowWorkers, AThreePercentDifferenceIsTooSmall) {
  Steps steps(4);
  SlowWorkers detector({});
  for (int s = 0; s < 2000; ++s) {
    StepRecord r = steps.next([&] { return normal(steps, 0.002); });
    for (double& seconds : r.workers[2].times.seconds) seconds *= 1.03;
    ASSERT_TRUE(detector.judge(r).raised.empty()) << s;
  }
}

// Time that a thread waits for a processor counts from 25 % on.
TEST(SlowWorkers, AQueueForAProcessorIsToldApart) {
  for (const double factor : {1.1, 2.0}) {
    Steps steps(4);
    SlowWorkers detector({});
    std::vector<Alarm> raised;
    for (int s = 0; s < 200; ++s) {
      StepRecord r = steps.next([&] { return normal(steps, 0.01); });
      StepTimes& t = r.workers[0].times;
      const double more = (factor - 1) * t.own();
      t.of(Phase::kForward) += more;
      t.queued = more;
      for (const Alarm& a : detector.judge(r).raised) raised.push_back(a);
    }
    if (factor < 1.25) {
      EXPECT_TRUE(raised.empty());
    } else {
      ASSERT_FALSE(raised.empty());
      EXPECT_EQ(raised.front().statistic, Statistic::kQueuedTime);
    }
  }
}

TEST(SlowWorkers, LastsAsLongAsItIsSo) {
  Steps steps(4);
  SlowWorkers detector({});
  bool lasted = false;
  for (int s = 0; s < 200; ++s) {
    StepRecord r = steps.next([&] { return normal(steps, 0.01); });
    if (s < 100) r.workers[3].times.of(Phase::kForward) *= 3;
    const auto lasting = detector.judge(r).lasting;
    if (s == 99) lasted = !lasting.empty();
    if (s == 199) {
      EXPECT_TRUE(lasting.empty());
    }
  }
  EXPECT_TRUE(lasted);
}

TEST(SlowWorkers, WhatIsNotKnownSaysNothing) {
  Steps steps(4);
  SlowWorkers detector({});
  for (int s = 0; s < 50; ++s) {
    StepRecord r = steps.next([] { return 0.0; });
    for (std::size_t i = 1; i < r.workers.size(); ++i) r.workers[i].times = {};
    r.workers[0].times.of(Phase::kForward) = 100;
    EXPECT_TRUE(detector.judge(r).raised.empty());
    EXPECT_EQ(detector.judge(r).watched, 0U);
  }
  StepRecord nobody;
  nobody.workers_expected = 4;
  EXPECT_TRUE(detector.judge(nobody).raised.empty());
}

}  // namespace
}  // namespace presum::detect
