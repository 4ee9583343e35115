// SPDX-License-Identifier: Apache-2.0
#include "step/phases.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <thread>

#include "base/clock.h"
#include "step/activity.h"
#include "step/waits.h"

namespace presum::step {
namespace {

// A clock that the test moves.
struct Told {
  Reading at;
  const Reading& own(double seconds) {
    at.now += seconds;
    return at;
  }
  const Reading& waiting(double seconds) {
    at.now += seconds;
    at.waited += seconds;
    return at;
  }
};

Phases begun(Told& told) {
  Phases phases;
  EXPECT_FALSE(phases.end(told.at).known());
  return phases;
}

TEST(Phases, AStepIsSplitAtItsEvents) {
  Told told;
  Phases phases = begun(told);
  phases.on(Mark::kForward, told.own(1));
  phases.on(Mark::kBackward, told.own(2));
  phases.on(Mark::kPassEnds, told.own(4));
  phases.on(Mark::kOptimizerBegins, told.waiting(8));
  phases.on(Mark::kOptimizerEnds, told.own(16));
  const StepTimes t = phases.end(told.at);
  EXPECT_EQ(t.of(Phase::kData), 1);
  EXPECT_EQ(t.of(Phase::kForward), 2);
  EXPECT_EQ(t.of(Phase::kBackward), 4);
  EXPECT_EQ(t.of(Phase::kReduction), 8);
  EXPECT_EQ(t.of(Phase::kOptimizer), 16);
  EXPECT_EQ(t.of(Phase::kRest), 0);
  EXPECT_EQ(t.own(), 23);
  EXPECT_EQ(t.total(), 31);
  EXPECT_TRUE(t.micro.empty());
}

TEST(Phases, OfAStepInsideTheOptimizersClosureTheGapBeforeIsData) {
  Told told;
  Phases phases = begun(told);
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    phases.on(Mark::kForward, told.own(1));
    phases.on(Mark::kPassEnds, told.own(2));
  }
  phases.on(Mark::kOptimizerBegins, told.own(4));
  phases.on(Mark::kForward, told.own(8));
  phases.on(Mark::kBackward, told.own(16));
  phases.on(Mark::kPassEnds, told.own(32));
  phases.on(Mark::kOptimizerEnds, told.own(64));
  const StepTimes t = phases.end(told.own(128));
  EXPECT_EQ(t.of(Phase::kData), 1 + 1 + 4);
  EXPECT_EQ(t.of(Phase::kForward), 2 + 2 + 16);
  EXPECT_EQ(t.of(Phase::kBackward), 32);
  EXPECT_EQ(t.of(Phase::kOptimizer), 8 + 64);
  EXPECT_EQ(t.of(Phase::kRest), 128);
}

TEST(Phases, AnOptimizerThatCallsAnotherBeginsOnce) {
  Told told;
  Phases phases = begun(told);
  phases.on(Mark::kForward, told.own(1));
  phases.on(Mark::kPassEnds, told.own(2));
  phases.on(Mark::kOptimizerBegins, told.own(4));
  phases.on(Mark::kOptimizerBegins, told.own(8));
  phases.on(Mark::kOptimizerEnds, told.own(16));
  const StepTimes t = phases.end(told.at);
  EXPECT_EQ(t.of(Phase::kRest), 4);
  EXPECT_EQ(t.of(Phase::kOptimizer), 8 + 16);
}

TEST(Phases, TheFirstStepIsNotKnown) {
  Told told;
  Phases phases;
  phases.on(Mark::kForward, told.own(1));
  phases.on(Mark::kPassEnds, told.own(1));
  const StepTimes t = phases.end(told.own(1));
  EXPECT_FALSE(t.known());
  EXPECT_TRUE(std::isnan(t.own()));
}

TEST(Phases, WaitsAreTakenOutOfThePhaseInWhichTheyLie) {
  Told told;
  Phases phases = begun(told);
  phases.on(Mark::kForward, told.waiting(3));  // a barrier before the batch
  told.waiting(5);                             // synchronized batch normalization
  phases.on(Mark::kBackward, told.own(2));
  phases.on(Mark::kPassEnds, told.own(1));
  const StepTimes t = phases.end(told.at);
  EXPECT_EQ(t.of(Phase::kData), 0);
  EXPECT_EQ(t.of(Phase::kForward), 2);
  EXPECT_EQ(t.of(Phase::kReduction), 8);
}

TEST(Phases, MicroBatchesAreKeptApart) {
  Told told;
  Phases phases = begun(told);
  for (const double k : {1.0, 2.0, 4.0}) {
    phases.on(Mark::kForward, told.own(k));
    phases.on(Mark::kForward, told.own(k));  // two towers
    phases.on(Mark::kBackward, told.own(k));
    phases.on(Mark::kPassEnds, told.own(10 * k));
  }
  phases.on(Mark::kOptimizerBegins, told.own(0.5));
  phases.on(Mark::kOptimizerEnds, told.own(0.25));
  const StepTimes t = phases.end(told.at);
  ASSERT_EQ(t.micro.size(), 3U);
  EXPECT_EQ(t.micro[1], (MicroBatchTimes{2, 4, 20}));
  EXPECT_EQ(t.of(Phase::kData), 7);
  EXPECT_EQ(t.of(Phase::kForward), 14);
  EXPECT_EQ(t.of(Phase::kBackward), 70);
  EXPECT_EQ(t.of(Phase::kRest), 0.5);
}

TEST(Phases, OfManyMicroBatchesTheFirstAreKeptApart) {
  Told told;
  Phases phases = begun(told);
  for (int k = 0; k < 100; ++k) {
    phases.on(Mark::kForward, told.own(1));
    phases.on(Mark::kBackward, told.own(1));
    phases.on(Mark::kPassEnds, told.own(1));
  }
  const StepTimes t = phases.end(told.at);
  ASSERT_EQ(t.micro.size(), kMicroTimesMax);
  EXPECT_EQ(t.micro.back(), (MicroBatchTimes{1, 1, 1}));
  EXPECT_EQ(t.of(Phase::kBackward), 100);
}

TEST(Phases, TimeThatNobodyNamesIsRest) {
  Told told;
  Phases phases = begun(told);
  phases.on(Mark::kEvaluates, told.at);
  phases.on(Mark::kForward, told.own(9));  // it evaluated before
  phases.on(Mark::kBackward, told.own(1));
  phases.on(Mark::kPassEnds, told.own(1));
  phases.on(Mark::kOptimizerBegins, told.own(3));  // clipping
  phases.on(Mark::kOptimizerEnds, told.own(1));
  const StepTimes t = phases.end(told.own(2));
  EXPECT_EQ(t.of(Phase::kData), 0);
  EXPECT_EQ(t.of(Phase::kRest), 14);
}

// For any sequence of events, the phases add up to the time that passed, and none is negative.
TEST(Phases, AddUpForAnyEvents) {
  std::mt19937 random(7);
  Told told;
  Phases phases = begun(told);
  double began = 0;
  for (int i = 0; i < 20'000; ++i) {
    const auto passed = static_cast<double>(random() % 5);
    random() % 3 == 0 ? told.waiting(passed) : told.own(passed);
    const auto mark = static_cast<Mark>(random() % 8);
    if (mark != Mark::kStepEnds) {
      phases.on(mark, told.at);
      continue;
    }
    const StepTimes t = phases.end(told.at);
    ASSERT_NEAR(t.total(), told.at.now - began, 1e-9);
    for (const double s : t.seconds) ASSERT_GE(s, 0);
    began = told.at.now;
  }
}

TEST(Phases, MarksOfADeviceAreReplayed) {
  const std::vector<Marked> marks = {{Mark::kStepEnds, 10}, {Mark::kForward, 11},
                                     {Mark::kBackward, 13}, {Mark::kPassEnds, 17},
                                     {Mark::kReduced, 25},  {Mark::kOptimizerBegins, 26},
                                     {Mark::kStepEnds, 30}};
  const StepTimes t = replay(marks);
  EXPECT_TRUE(t.on_device);
  EXPECT_EQ(t.of(Phase::kData), 1);
  EXPECT_EQ(t.of(Phase::kForward), 2);
  EXPECT_EQ(t.of(Phase::kBackward), 4);
  EXPECT_EQ(t.of(Phase::kReduction), 8);
  EXPECT_EQ(t.of(Phase::kRest), 1);
  EXPECT_EQ(t.of(Phase::kOptimizer), 4);
  auto twice = marks;  // two waits, one after the other
  twice.insert(twice.begin() + 4, {Mark::kReduced, 20});
  EXPECT_EQ(replay(twice).of(Phase::kReduction), 8);
  auto broken = marks;
  broken[3].at = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(replay(broken).known());
  broken[3].at = 12;  // before the preceding mark
  EXPECT_FALSE(replay(broken).known());
  EXPECT_FALSE(replay(std::span(marks).first(6)).known());
  EXPECT_FALSE(replay({}).known());
}

TEST(Waits, NestedOnesCountOnce) {
  activity().event(0, 0, 0, Phase::kForward);  // makes this the training thread
  Waits w;
  w.end(1);  // no wait is open
  w.begin(2);
  w.begin(3);
  EXPECT_TRUE(activity().waiting());
  w.end(4);
  EXPECT_EQ(w.seconds(5), 3);
  w.end(6);
  EXPECT_FALSE(activity().waiting());
  EXPECT_EQ(w.seconds(9), 4);
}

TEST(Waits, OfOtherThreadsNobodyIsTold) {
  activity().event(0, 0, 0, Phase::kForward);
  std::thread([] {
    Waits w;
    w.begin(1);
    EXPECT_FALSE(activity().waiting());
    w.end(2);
  }).join();
}

TEST(Waits, WhatIsLeftOpenCanBeAbandoned) {
  Waits w;
  w.begin(1);
  w.begin(2);
  w.abandon(4);
  EXPECT_EQ(w.seconds(9), 3);
  w.end(10);
  EXPECT_EQ(w.seconds(11), 3);
}

TEST(Waits, EachThreadHasItsOwn) {
  waits().begin(monotonic_now().count());
  std::thread([] { EXPECT_EQ(read_clock().waited, 0); }).join();
  waits().end(monotonic_now().count());
  EXPECT_GT(read_clock().now, 0);
}

}  // namespace
}  // namespace presum::step
