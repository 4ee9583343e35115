// SPDX-License-Identifier: Apache-2.0
#include "compare/timeline.h"

#include <gtest/gtest.h>

#include "compare/testing.h"

namespace presum::compare {
namespace {

using testing::record;
using testing::step_of;
using testing::steps_of;
using testing::TempFolder;
using How = Piece::How;

// Steps `from` to `to` of the training as a segment of their own, whose numbers begin at 0.
std::vector<StepRecord> resumed(std::uint64_t from, std::uint64_t to) {
  std::vector<StepRecord> out;
  for (std::uint64_t s = from; s < to; ++s) {
    out.push_back(step_of(s, 3));
    out.back().step = s - from;
  }
  return out;
}

void change_gradients(std::vector<StepRecord>& steps) {
  for (StepRecord& s : steps) {
    for (std::size_t w = 0; w < s.workers.size(); ++w) testing::change_gradient(s, w, {"head"});
  }
}

std::vector<Piece> pieces_of(const std::filesystem::path& run) {
  const auto log = RunLog::open(run);
  EXPECT_TRUE(log);
  const auto pieces = timeline(*log, 0, 0, {1, 2});
  EXPECT_TRUE(pieces);
  return pieces.value_or(std::vector<Piece>());
}

TEST(Timeline, GoesOnWhereASegmentRepeatsGradients) {
  const TempFolder folder;
  record(folder / "run", steps_of(9));
  record(folder / "run", resumed(6, 12));
  const auto pieces = pieces_of(folder / "run");
  ASSERT_EQ(pieces.size(), 2U);
  EXPECT_EQ(pieces[0].end, 6U);
  EXPECT_EQ(pieces[1].offset, 6U);
  EXPECT_EQ(pieces[1].how, How::kReplays);
}

TEST(Timeline, GoesOnWhereASegmentRepeatsSamples) {
  const TempFolder folder;
  record(folder / "run", steps_of(9));
  auto again = resumed(6, 12);
  change_gradients(again);
  record(folder / "run", again);
  const auto pieces = pieces_of(folder / "run");
  ASSERT_EQ(pieces.size(), 2U);
  EXPECT_EQ(pieces[1].begin, 6U);
}

TEST(Timeline, GoesOnAfterTheLastStepWhereNothingIsRepeated) {
  const TempFolder folder;
  record(folder / "run", steps_of(6));
  record(folder / "run", resumed(6, 12));
  const auto pieces = pieces_of(folder / "run");
  ASSERT_EQ(pieces.size(), 2U);
  EXPECT_EQ(pieces[1].begin, 6U);
  EXPECT_EQ(pieces[1].how, How::kAssumed);
}

TEST(Timeline, BeginsAnewWhereSamplesAndParametersAreThoseOfStepZero) {
  const TempFolder folder;
  record(folder / "run", steps_of(6));
  auto again = resumed(0, 4);
  change_gradients(again);
  record(folder / "run", again);
  const auto pieces = pieces_of(folder / "run");
  ASSERT_EQ(pieces.size(), 1U);
  EXPECT_EQ(pieces[0].segment, 2U);
  EXPECT_EQ(pieces[0].how, How::kRestart);
}

TEST(Timeline, GoesOnWhereOnlyTheDataBeginAnew) {
  const TempFolder folder;
  record(folder / "run", steps_of(6));
  auto again = resumed(0, 4);
  change_gradients(again);
  for (WorkerRecord& w : again[0].workers) w.states[0].value ^= 1;
  record(folder / "run", again);
  const auto pieces = pieces_of(folder / "run");
  ASSERT_EQ(pieces.size(), 2U);
  EXPECT_EQ(pieces[1].begin, 6U);
}

TEST(Timeline, WalksThroughItsPiecesWithoutTheStepsThatWereDoneAgain) {
  const TempFolder folder;
  record(folder / "run", steps_of(9));
  record(folder / "run", resumed(6, 12));
  const auto log = RunLog::open(folder / "run");
  ASSERT_TRUE(log);
  const auto pieces = pieces_of(folder / "run");
  Walk walk(*log, pieces, 0, 0);
  for (std::uint64_t step = 0; step < 12; ++step) {
    const auto at = walk.next();
    ASSERT_TRUE(at);
    ASSERT_NE(at->record, nullptr);
    EXPECT_EQ(at->step, step);
    EXPECT_EQ(at->piece->segment, step < 6 ? 1U : 2U);
  }
  EXPECT_EQ(walk.next()->record, nullptr);
}

TEST(Timeline, OfAResumedRunIsComparedWithOneThatWasNotInterrupted) {
  const TempFolder folder;
  record(folder / "whole", steps_of(12));
  record(folder / "resumed", steps_of(9));
  record(folder / "resumed", resumed(6, 12));
  const auto equal = testing::compare_folders(folder / "whole", folder / "resumed");
  EXPECT_EQ(equal.outcome, Outcome::kIdentical);
  EXPECT_EQ(equal.models.at(0).common_steps, 12U);
  EXPECT_EQ(equal.models.at(0).remarks.size(), 1U);
}

}  // namespace
}  // namespace presum::compare
