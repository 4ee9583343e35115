// SPDX-License-Identifier: Apache-2.0
#include "compare/compare.h"

#include <gtest/gtest.h>

#include "compare/testing.h"
#include "compare/wording.h"

namespace presum::compare {
namespace {

using Names = std::vector<std::string>;

TEST(Compare, FindsEqualRunsIdenticalAtEveryStage) {
  const auto c = compare_steps(steps_of(kSteps), steps_of(kSteps));
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
  EXPECT_EQ(c.first(), nullptr);
  ASSERT_EQ(c.models.size(), 1U);
  const ModelComparison& m = c.models[0];
  EXPECT_EQ(m.common_steps, kSteps);
  for (const Stage s : {Stage::kConfiguration, Stage::kData, Stage::kRandom, Stage::kParameters,
                        Stage::kLoss, Stage::kGradient}) {
    EXPECT_EQ(m.at(s).compared, kSteps) << to_string(s);
    EXPECT_EQ(m.at(s).differing, 0U) << to_string(s);
  }
  EXPECT_EQ(m.at(Stage::kReduction).compared, 3U);
  EXPECT_EQ(m.at(Stage::kFinal).compared, 1U);
  EXPECT_TRUE(between_text(m).empty());
  EXPECT_EQ(not_compared_texts(m),
            Names{"reduction at 9 of 12 common steps: not recorded in either run"});
}

TEST(Compare, WorksWithOneWorkerAndOneStep) {
  EXPECT_EQ(compare_steps(steps_of(1, 1), steps_of(1, 1)).outcome, Outcome::kIdentical);
}

TEST(Compare, SaysThatNothingIsInCommon) {
  auto late = steps_of(3);
  for (StepRecord& s : late) s.step += 100;
  EXPECT_EQ(compare_steps(steps_of(3), late).outcome, Outcome::kNotComparable);
  const auto c = compare_steps(steps_of(3), {});
  EXPECT_EQ(c.outcome, Outcome::kNotComparable);
  EXPECT_FALSE(obstacle_text(c).empty());
}

TEST(Compare, ComparesEveryModelAndNamesTheFirstToDiffer) {
  const TempFolder folder;
  auto one = steps_of(4);
  auto two = steps_of(4);
  for (StepRecord& s : two) s.model.model_index = 1;
  auto both = one;
  both.insert(both.end(), two.begin(), two.end());
  record(folder / "a", both);
  change_gradient(both[2], 0, {"head"});
  change_gradient(both[4 + 1], 1, {"embed"});
  record(folder / "b", both);
  const auto c = compare_folders(folder / "a", folder / "b");
  ASSERT_EQ(c.models.size(), 2U);
  EXPECT_EQ(c.first()->model_index, 1U);
  EXPECT_EQ(c.models[0].at(Stage::kGradient).first->step, 2U);
}

TEST(Compare, ListsModelsOfOneRunOnly) {
  const TempFolder folder;
  auto steps = steps_of(2);
  record(folder / "a", steps);
  for (StepRecord& s : steps_of(2)) {
    s.model.model_index = 1;
    steps.push_back(s);
  }
  record(folder / "b", steps);
  const auto c = compare_folders(folder / "a", folder / "b");
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
  EXPECT_EQ(not_compared_texts(c), Names{"model 1, data-parallel group 0: only in B"});
}

TEST(Damage, IsAStepWithoutANumberOfWorkers) {
  for (const std::uint32_t workers : {0U, ~0U}) {
    auto steps = steps_of(2);
    steps[1].workers_expected = workers;
    const TempFolder folder;
    record(folder / "a", steps_of(2));
    record(folder / "b", steps);
    const auto a = RunLog::open(folder / "a");
    const auto b = RunLog::open(folder / "b");
    ASSERT_TRUE(a && b);
    const auto c = compare(*a, *b);
    ASSERT_FALSE(c);
    EXPECT_EQ(c.error().code, ErrorCode::kCorrupt);
    EXPECT_TRUE(has(c.error().message, "presum.db is damaged: copy it again")) << c.error().message;
  }
}

}  // namespace
}  // namespace presum::compare
