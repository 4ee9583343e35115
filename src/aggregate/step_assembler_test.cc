// SPDX-License-Identifier: Apache-2.0
#include "aggregate/step_assembler.h"

#include <gtest/gtest.h>

#include <utility>

#include <vector>

namespace presum::aggregate {
namespace {

using Taken = StepAssembler::Taken;
using Numbers = std::vector<std::uint64_t>;

packet::Step step_of(std::uint64_t step, std::uint32_t replica, std::uint32_t replicas,
                     std::uint32_t model_index = 0, std::uint32_t dp_group = 0) {
  packet::Step s;
  s.header.identity = {
      .model_index = model_index, .replica = replica, .dp_group = dp_group, .replicas = replicas};
  s.header.step = step;
  return s;
}

// The numbers of all steps that are ready now.
Numbers closed(StepAssembler& assembler, double now = 0, bool flush = false) {
  Numbers out;
  while (const auto step = assembler.next(Seconds(now), flush)) {
    out.push_back(step->workers.front().header.step);
  }
  return out;
}

TEST(StepAssembler, GivesAStepWhenAllItsWorkersAreThereByReplica) {
  StepAssembler assembler;
  for (const std::uint32_t replica : {2U, 0U}) {
    EXPECT_EQ(assembler.add(step_of(4, replica, 3), Seconds(0)), Taken::kNew);
    EXPECT_FALSE(assembler.next(Seconds(0), false));
  }
  EXPECT_EQ(assembler.add(step_of(4, 1, 3), Seconds(0)), Taken::kNew);
  const auto step = assembler.next(Seconds(0), false);
  ASSERT_TRUE(step);
  EXPECT_EQ(step->workers_expected, 3U);
  ASSERT_EQ(step->workers.size(), 3U);
  for (std::uint32_t i = 0; i < 3; ++i) EXPECT_EQ(step->workers[i].header.identity.replica, i);
  EXPECT_FALSE(assembler.next(Seconds(0), false));
}

TEST(StepAssembler, ClosesInOrderEvenIfALaterStepIsCompleteFirst) {
  StepAssembler assembler;
  assembler.add(step_of(1, 0, 2), Seconds(0));
  assembler.add(step_of(2, 0, 2), Seconds(0));
  assembler.add(step_of(2, 1, 2), Seconds(0));
  EXPECT_TRUE(closed(assembler).empty());
  assembler.add(step_of(1, 1, 2), Seconds(0));
  EXPECT_EQ(closed(assembler), (Numbers{1, 2}));
}

TEST(StepAssembler, KeepsTheFirstOfTwoEqualPackets) {
  StepAssembler assembler;
  auto first = step_of(1, 0, 2);
  first.dropped = 1;
  auto second = step_of(1, 0, 2);
  second.dropped = 2;
  EXPECT_EQ(assembler.add(std::move(first), Seconds(0)), Taken::kNew);
  EXPECT_EQ(assembler.add(std::move(second), Seconds(0)), Taken::kDuplicate);
  assembler.add(step_of(1, 1, 2), Seconds(0));
  EXPECT_EQ(assembler.next(Seconds(0), false)->workers[0].dropped, 1U);
}

TEST(StepAssembler, RefusesAStepThatNoWorkerCanHaveReached) {
  StepAssembler assembler;
  assembler.add(step_of(5, 0, 1), Seconds(0));
  EXPECT_EQ(assembler.add(step_of(1'000'000'000'000, 0, 1), Seconds(0)), Taken::kImplausible);
  EXPECT_EQ(assembler.add(step_of(6, 0, 1), Seconds(0)), Taken::kNew);
}

TEST(StepAssembler, CallsWhatComesAfterItsStepWasClosedLate) {
  StepAssembler assembler;
  assembler.add(step_of(5, 0, 1), Seconds(0));
  EXPECT_EQ(closed(assembler), Numbers{5});
  EXPECT_EQ(assembler.add(step_of(5, 0, 1), Seconds(0)), Taken::kLate);
  EXPECT_EQ(assembler.add(step_of(4, 0, 1), Seconds(0)), Taken::kLate);
  EXPECT_EQ(assembler.add(step_of(6, 0, 1), Seconds(0)), Taken::kNew);
}

TEST(StepAssembler, GivesUpOnAWorkerAfterBoth64LaterStepsAnd30Seconds) {
  StepAssembler assembler;
  for (std::uint64_t s = 0; s < 64; ++s) assembler.add(step_of(s, 0, 2), Seconds(0));
  EXPECT_TRUE(closed(assembler, 29.9).empty());
  EXPECT_TRUE(closed(assembler, 1000).empty()) << "only 63 later ones wait";
  assembler.add(step_of(64, 0, 2), Seconds(1000));
  const auto step = assembler.next(Seconds(1000), false);
  ASSERT_TRUE(step);
  EXPECT_EQ(step->workers.front().header.step, 0U);
  EXPECT_EQ(step->missing, std::vector<std::uint32_t>{1});
}

TEST(StepAssembler, DoesNotWaitForTheSilentAgainUntilTheyAreHeard) {
  StepAssembler assembler;
  for (std::uint64_t s = 0; s <= 64; ++s) assembler.add(step_of(s, 0, 2), Seconds(0));
  EXPECT_EQ(closed(assembler, 30).size(), 65U) << "the first is given up, the later need not wait";
  assembler.add(step_of(65, 0, 2), Seconds(31));
  EXPECT_EQ(closed(assembler, 31), Numbers{65});
  assembler.heard({.replica = 1, .replicas = 2}, Seconds(32));
  assembler.add(step_of(66, 0, 2), Seconds(33));
  EXPECT_TRUE(closed(assembler, 33).empty()) << "it is back";
  assembler.add(step_of(66, 1, 2), Seconds(33));
  EXPECT_EQ(closed(assembler, 33), Numbers{66});
}

TEST(StepAssembler, AWorkerWhosePacketWasLostIsAwaitedInLaterSteps) {
  StepAssembler assembler;
  assembler.add(step_of(0, 0, 2), Seconds(0));
  for (std::uint64_t s = 1; s <= 64; ++s) {
    assembler.add(step_of(s, 0, 2), Seconds(0));
    assembler.add(step_of(s, 1, 2), Seconds(29));
  }
  EXPECT_EQ(closed(assembler, 30).size(), 65U);
  assembler.add(step_of(65, 0, 2), Seconds(30));
  EXPECT_TRUE(closed(assembler, 30).empty()) << "it was heard a second ago";
}

TEST(StepAssembler, WithoutMemoryTheOldestStepsAreGivenUpAndNobodyIsMissing) {
  auto big = [](std::uint64_t step, std::uint32_t model_index) {
    auto s = step_of(step, 0, 2, model_index);
    s.sketch.resize(1024);
    return s;
  };
  StepAssembler assembler(64 << 10);
  double now = 0;
  for (std::uint64_t s = 0; s < 5; ++s) assembler.add(big(s, 1), Seconds(now++));
  EXPECT_TRUE(closed(assembler, now).empty());
  for (std::uint64_t s = 0; s < 10; ++s) assembler.add(big(s, 0), Seconds(now++));
  const auto step = assembler.next(Seconds(now), false);
  ASSERT_TRUE(step);
  EXPECT_EQ(step->workers.front().header.identity.model_index, 1U) << "the oldest of all models";
  EXPECT_EQ(step->missing, std::vector<std::uint32_t>());
  while (assembler.next(Seconds(now), false)) continue;
  assembler.add(step_of(20, 0, 1, 2), Seconds(now));
  EXPECT_EQ(closed(assembler, now), Numbers{20}) << "others go on";
}

TEST(StepAssembler, WithoutMemoryWhoWasSilentForLongIsMissingFromLaterSteps) {
  StepAssembler assembler(1);
  assembler.add(step_of(0, 0, 2), Seconds(0));
  EXPECT_EQ(assembler.next(Seconds(1), false)->missing, std::vector<std::uint32_t>());
  assembler.add(step_of(1, 0, 2), Seconds(2));
  EXPECT_EQ(assembler.next(Seconds(31), false)->missing, std::vector<std::uint32_t>());
  assembler.add(step_of(2, 0, 2), Seconds(32));
  EXPECT_EQ(assembler.next(Seconds(32), false)->missing, std::vector<std::uint32_t>{1})
      << "nobody waits for it any more";
}

TEST(StepAssembler, AtTheEndWhoLeftOrNeverCameIsMissing) {
  const auto missing = [](double end) {
    StepAssembler assembler;
    assembler.add(step_of(0, 0, 4), Seconds(0));
    assembler.heard({.replica = 1, .replicas = 4}, Seconds(0));  // and silent since: a checkpoint
    assembler.departed({.replica = 2, .replicas = 4});
    return assembler.next(Seconds(end), true)->missing;
  };
  EXPECT_EQ(missing(29), (std::vector<std::uint32_t>{2})) << "3 may be on its way";
  EXPECT_EQ(missing(31), (std::vector<std::uint32_t>{2, 3}));
}

TEST(StepAssembler, DoesNotWaitForWorkersThatLeft) {
  StepAssembler assembler;
  assembler.add(step_of(0, 0, 3), Seconds(0));
  assembler.departed({.replica = 1, .replicas = 3});
  EXPECT_TRUE(closed(assembler).empty());
  assembler.departed({.replica = 2, .replicas = 3});
  EXPECT_EQ(closed(assembler), Numbers{0});
}

TEST(StepAssembler, StillTakesTheLastStepsOfWorkersThatLeft) {
  StepAssembler assembler;
  assembler.departed({.replica = 1, .replicas = 2});
  assembler.add(step_of(0, 1, 2), Seconds(0));
  EXPECT_TRUE(closed(assembler).empty()) << "replica 0 is still awaited";
  assembler.add(step_of(0, 0, 2), Seconds(0));
  const auto step = assembler.next(Seconds(0), false);
  ASSERT_TRUE(step);
  EXPECT_EQ(step->workers.size(), 2U);
}

TEST(StepAssembler, KeepsModulesAndShardsApart) {
  StepAssembler assembler;
  assembler.add(step_of(0, 0, 2, 0, 0), Seconds(0));
  assembler.add(step_of(0, 1, 2, 1, 0), Seconds(0));
  assembler.add(step_of(0, 1, 2, 0, 1), Seconds(0));
  EXPECT_TRUE(closed(assembler).empty()) << "three streams with one of two ranks each";
  assembler.departed({.model_index = 1, .replica = 0, .replicas = 2});
  const auto step = assembler.next(Seconds(0), false);
  ASSERT_TRUE(step);
  EXPECT_EQ(step->workers[0].header.identity.model_index, 1U);
  assembler.add(step_of(0, 0, 2, 0, 1), Seconds(0));
  EXPECT_EQ(assembler.next(Seconds(0), false)->workers[1].header.identity.dp_group, 1U);
  EXPECT_EQ(assembler.add(step_of(0, 1, 2, 0, 0), Seconds(0)), Taken::kNew) << "not late here";
  EXPECT_EQ(closed(assembler), Numbers{0});
}

TEST(StepAssembler, FlushGivesEverythingInOrder) {
  StepAssembler assembler;
  for (const std::uint64_t s : {7U, 3U, 5U}) assembler.add(step_of(s, 0, 2), Seconds(0));
  EXPECT_EQ(closed(assembler, 0, true), (Numbers{3, 5, 7}));
  EXPECT_TRUE(closed(assembler, 0, true).empty());
}

TEST(StepAssembler, ExpectsAsManyWorkersAsAnyPacketOfTheStepSays) {
  StepAssembler assembler;
  assembler.add(step_of(0, 0, 2), Seconds(0));
  assembler.add(step_of(0, 1, 3), Seconds(0));
  EXPECT_TRUE(closed(assembler).empty());
  EXPECT_EQ(assembler.next(Seconds(0), true)->workers_expected, 3U);
}

packet::Step unreduced(std::uint64_t reductions, std::uint32_t window, std::uint64_t before,
                       std::uint32_t replica) {
  packet::Step s = step_of(reductions, replica, 2);
  s.number = {.reductions = reductions, .window = window, .unreduced = before};
  return s;
}

packet::Step reduced_after(std::uint64_t reductions, std::uint64_t unreduced,
                           std::uint32_t replica) {
  packet::Step s = step_of(reductions, replica, 2);
  s.number.unreduced = unreduced;
  return s;
}

TEST(StepAssembler, StepsThatWereNotReducedHaveNumbersOfTheirOwn) {
  StepAssembler assembler;
  for (const std::uint32_t replica : {0U, 1U}) {
    assembler.add(step_of(0, replica, 2), Seconds(0));
    assembler.add(unreduced(1, 0, 0, replica), Seconds(0));
    assembler.add(unreduced(1, 1, 1, replica), Seconds(0));
    assembler.add(reduced_after(1, 2, replica), Seconds(0));
  }
  EXPECT_EQ(closed(assembler), (Numbers{0, 1, 2, 3}));
}

// Rank 1 leaves out one of three steps between two reductions, rank 0 one between the next two.
TEST(StepAssembler, AWorkerThatLeavesOutAStepIsAlignedByTheNextReduction) {
  StepAssembler assembler;
  std::uint64_t before[] = {0, 0};
  for (std::uint64_t r = 0; r < 2; ++r) {
    for (std::uint32_t window = 0; window < 3; ++window) {
      for (const std::uint32_t replica : {0U, 1U}) {
        if (window == 1 && replica != r) continue;
        assembler.add(unreduced(r, window, before[replica]++, replica), Seconds(0));
      }
    }
    for (const std::uint32_t replica : {0U, 1U}) {
      assembler.add(reduced_after(r, before[replica], replica), Seconds(0));
    }
  }
  Numbers workers;
  Numbers numbers;
  while (const auto step = assembler.next(Seconds(100), true)) {
    numbers.push_back(step->workers.front().header.step);
    workers.push_back(step->workers.size());
  }
  EXPECT_EQ(numbers, (Numbers{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(workers, (Numbers{2, 1, 2, 2, 2, 1, 2, 2}));
}

// A rank known to have continued is not awaited, and the number of expected ranks stays the same.
TEST(StepAssembler, WhoLeftOutAStepIsCountedAndStillExpected) {
  StepAssembler assembler;
  assembler.add(unreduced(0, 0, 0, 0), Seconds(0));
  EXPECT_FALSE(assembler.next(Seconds(0), false));
  assembler.add(unreduced(0, 1, 0, 1), Seconds(0));
  const auto step = assembler.next(Seconds(0), false);
  ASSERT_TRUE(step);
  EXPECT_EQ(step->workers_expected, 2U);
  EXPECT_EQ(step->left_out, 1U);
  EXPECT_TRUE(step->missing.empty());
}

TEST(StepAssembler, AStepOfAWorkerThatComesOutOfOrderIsAwaited) {
  StepAssembler assembler;
  assembler.add(unreduced(0, 0, 0, 0), Seconds(0));
  assembler.add(unreduced(0, 1, 1, 1), Seconds(0));  // it has had one before
  EXPECT_FALSE(assembler.next(Seconds(0), false));
  EXPECT_EQ(assembler.add(unreduced(0, 0, 0, 1), Seconds(0)), Taken::kNew);
  EXPECT_EQ(assembler.next(Seconds(0), false)->workers.size(), 2U);
}

// The packet was lost. Its absence says nothing about the rank, which continues.
TEST(StepAssembler, NobodyThatGoesOnIsMissingFromAStepThatWasNotReduced) {
  StepAssembler assembler;
  assembler.add(unreduced(0, 0, 0, 0), Seconds(0));
  for (std::uint32_t window = 1; window < 80; ++window) {
    for (const std::uint32_t replica : {0U, 1U}) {
      assembler.add(unreduced(0, window, window, replica), Seconds(window));
    }
  }
  const auto step = assembler.next(Seconds(100), false);
  ASSERT_TRUE(step);
  EXPECT_EQ(step->workers.size(), 1U);
  EXPECT_EQ(step->left_out, 1U);
  EXPECT_TRUE(step->missing.empty());
}

TEST(StepAssembler, RefusesCountsOfUnreducedStepsThatNoWorkerCanHaveHad) {
  StepAssembler assembler;
  assembler.add(step_of(0, 0, 2), Seconds(0));
  for (const std::uint64_t count : {~std::uint64_t{0}, ~std::uint64_t{1}, std::uint64_t{1} << 40}) {
    EXPECT_EQ(assembler.add(reduced_after(1, count, 1), Seconds(0)), Taken::kImplausible);
  }
  EXPECT_EQ(assembler.add(reduced_after(0, 0, 1), Seconds(0)), Taken::kNew);
  EXPECT_EQ(closed(assembler), Numbers{0});
}

}  // namespace
}  // namespace presum::aggregate
