// SPDX-License-Identifier: Apache-2.0
#include "compare/timeline.h"

#include <gtest/gtest.h>

#include "compare/testing.h"

namespace presum::compare {
namespace {

void change_gradients(std::vector<StepRecord>& steps) {
  for (StepRecord& s : steps) {
    for (std::size_t w = 0; w < s.workers.size(); ++w) change_gradient(s, w, {"head"});
  }
}

// For a run with two segments.
std::vector<SegmentSpan> spans_of(const std::vector<StepRecord>& first,
                                  const std::vector<StepRecord>& second) {
  const TempFolder folder;
  record(folder / "run", first);
  record(folder / "run", second);
  const auto log = RunLog::open(folder / "run");
  EXPECT_TRUE(log);
  const auto spans = timeline(*log, 0, 0, {1, 2});
  EXPECT_TRUE(spans);
  return spans.value_or(std::vector<SegmentSpan>());
}

TEST(Timeline, GoesOnWhereASegmentRepeatsGradients) {
  const auto spans = spans_of(steps_of(9), resumed(6, 12));
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[0].end, 6U);
  EXPECT_EQ(spans[1].offset, 6U);
  EXPECT_EQ(spans[1].alignment, Alignment::kReplays);
}

TEST(Timeline, GoesOnWhereASegmentRepeatsSamples) {
  auto again = resumed(6, 12);
  change_gradients(again);
  const auto spans = spans_of(steps_of(9), again);
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[1].begin, 6U);
}

TEST(Timeline, GoesOnAfterTheLastStepWhereNothingIsRepeated) {
  const auto spans = spans_of(steps_of(6), resumed(6, 12));
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[1].begin, 6U);
  EXPECT_EQ(spans[1].alignment, Alignment::kAssumed);
}

TEST(Timeline, BeginsAnewWhereSamplesAndParametersAreThoseOfStepZero) {
  auto again = resumed(0, 4);
  change_gradients(again);
  const auto spans = spans_of(steps_of(6), again);
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(spans[0].segment, 2U);
  EXPECT_EQ(spans[0].alignment, Alignment::kRestart);
}

TEST(Timeline, GoesOnWhereOnlyTheDataBeginAnew) {
  auto again = resumed(0, 4);
  change_gradients(again);
  for (WorkerRecord& w : again[0].workers) w.states[0].value ^= 1;
  const auto spans = spans_of(steps_of(6), again);
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[1].begin, 6U);
}

// Epochs of four steps, all in the same order.
std::vector<StepRecord> unshuffled(std::uint64_t from, std::uint64_t to) {
  auto out = resumed(from, to);
  for (StepRecord& s : out) {
    for (WorkerRecord& w : s.workers) {
      set(w, FingerprintKind::kBatch, value(6, (s.step + from) % 4, w.replica));
    }
  }
  return out;
}

TEST(Timeline, GoesOnAfterTheLastStepWhereSeveralHaveItsSamples) {
  auto before = unshuffled(0, 10);
  auto after = unshuffled(10, 14);
  for (auto* steps : {&before, &after}) {
    change_workers(*steps, [](WorkerRecord& w) { w.states.clear(); });
  }
  const auto spans = spans_of(before, after);
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[1].begin, 10U);
  EXPECT_EQ(spans[1].alignment, Alignment::kAssumed);
}

TEST(Timeline, GoesOnAfterTheLastStepWhereTheOneOfItsSamplesHasOtherParameters) {
  const auto spans = spans_of(unshuffled(0, 6), unshuffled(6, 9));
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[1].begin, 6U);
  EXPECT_EQ(spans[1].alignment, Alignment::kAssumed);
}

TEST(Timeline, WalksThroughItsPiecesWithoutTheStepsThatWereDoneAgain) {
  const TempFolder folder;
  record(folder / "run", steps_of(9));
  record(folder / "run", resumed(6, 12));
  const auto log = RunLog::open(folder / "run");
  ASSERT_TRUE(log);
  const auto spans = spans_of(steps_of(9), resumed(6, 12));
  TimelineReader walk(*log, spans, 0, 0);
  for (std::uint64_t step = 0; step < 12; ++step) {
    const auto at = walk.next();
    ASSERT_TRUE(at);
    ASSERT_NE(at->record, nullptr);
    EXPECT_EQ(at->step, step);
    EXPECT_EQ(at->span->segment, step < 6 ? 1U : 2U);
  }
  EXPECT_EQ(walk.next()->record, nullptr);
}

TEST(Timeline, OfAResumedRunIsComparedWithOneThatWasNotInterrupted) {
  const TempFolder folder;
  record(folder / "whole", steps_of(12));
  record(folder / "resumed", steps_of(9));
  record(folder / "resumed", resumed(6, 12));
  const auto equal = compare_folders(folder / "whole", folder / "resumed");
  EXPECT_EQ(equal.outcome, Outcome::kIdentical);
  EXPECT_EQ(equal.models.at(0).common_steps, 12U);
  EXPECT_EQ(equal.models.at(0).remarks.size(), 1U);
  EXPECT_EQ(equal.models.at(0).at(Stage::kFinal).compared, 1U);
}

Comparison with_a_schedule(bool tells_settings) {
  const TempFolder folder;
  const auto steps = [&](std::uint64_t from, std::uint64_t to) {
    auto out = resumed(from, to);
    if (!tells_settings) change_workers(out, [](WorkerRecord& w) { w.fingerprints.clear(); });
    return out;
  };
  const RunOptions at_first{.facts = {{"optimizer", "SGD"}, {"optimizer.lr", "0.1"}}};
  const RunOptions later{.facts = {{"optimizer", "SGD"}, {"optimizer.lr", "0.05"}}};
  record(folder / "whole", steps(0, 12), at_first);
  record(folder / "resumed", steps(0, 9), at_first);
  record(folder / "resumed", steps(6, 12), later);
  return compare_folders(folder / "whole", folder / "resumed");
}

TEST(Timeline, OfAResumedRunHasAnotherLearningRateAtItsBeginning) {
  const auto told = with_a_schedule(true);
  EXPECT_EQ(told.outcome, Outcome::kIdentical);
  EXPECT_TRUE(told.facts.empty());
  const auto untold = with_a_schedule(false);
  EXPECT_EQ(untold.outcome, Outcome::kIdentical);
  ASSERT_EQ(untold.facts.size(), 1U);
  EXPECT_EQ(untold.facts[0].weight, FactDifference::Weight::kEnvironment);
}

TEST(Timeline, OfResumedRunsThatEndedAtOtherStepsLeavesTheirLastParametersOut) {
  const TempFolder folder;
  const auto sparse = [](std::uint64_t from) {
    std::vector<StepRecord> out;
    for (std::uint64_t s = from; s < from + 50; s += 10) {
      out.push_back(step_of(s, 3));
      out.back().step -= from;
      for (WorkerRecord& w : out.back().workers) w.optimizer_step -= from;
    }
    return out;
  };
  for (const auto& [name, unrecorded] : {std::pair("a", 9), std::pair("b", 5)}) {
    record(folder / name, sparse(0));
    RunOptions options;
    options.unrecorded = static_cast<std::uint64_t>(unrecorded);
    record(folder / name, sparse(50), options);
  }
  const auto c = compare_folders(folder / "a", folder / "b");
  EXPECT_EQ(c.models.at(0).common_steps, 10U);
  EXPECT_EQ(c.models.at(0).at(Stage::kFinal).compared, 0U);
}

}  // namespace
}  // namespace presum::compare
