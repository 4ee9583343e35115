// SPDX-License-Identifier: Apache-2.0
#include "compare/compare.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "compare/compare.h"
#include "compare/testing.h"
#include "compare/wording.h"

namespace presum::compare {
namespace {

using Kind = FingerprintKind;

TEST(FirstDifference, DoesNotCallRunsDifferentForGeneratorsAlone) {
  const auto c =
      changed_from(4, [](StepRecord& s) { set(s.workers[2], Kind::kRngTorch, s.step + 1); });
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
  EXPECT_TRUE(contains(remark_texts(c.models[0]), "rng_torch differ from step 4 on"));
}

TEST(FirstDifference, LooksPastGeneratorsThatWereNeverSeeded) {
  const auto c = changed_from(0, [](StepRecord& s) {
    set(s.workers[0], Kind::kRngNumpy, s.step + 1);
    if (s.step < 7) return;
    set(s.workers[1], Kind::kRngTorch, s.step + 1);
    s.workers[1].loss += 1;
  });
  expect_first(c, Stage::kRandom, 7, {11});
  EXPECT_TRUE(
      contains(remark_texts(c.models[0]), "rng_numpy differ from the first common step on"));
}

TEST(FirstDifference, LooksPastGeneratorsUnderWhichAStepCameOutEqual) {
  const auto c = changed_from(3, [](StepRecord& s) {
    set(s.workers[0], Kind::kRngTorch, s.step + 1);
    if (s.step == 7) change_gradient(s, 1, {"head"});
  });
  expect_first(c, Stage::kGradient, 7, {11});
  EXPECT_EQ(c.first()->last_identical, 6U);
  EXPECT_TRUE(contains(remark_texts(c.models[0]),
                       "rng_torch differ from step 3 on, but step 3 came out equal"));
}

TEST(FirstDifference, KeepsTheFirstDifferenceOfEveryStage) {
  const auto c = changed_from(4, [](StepRecord& s) {
    if (s.step == 4) change_gradient(s, 1, {"head"});
    if (s.step < 6) return;
    for (WorkerRecord& w : s.workers) {
      w.loss += 1;
      w.states[3].value ^= 1;
    }
  });
  expect_first(c, Stage::kGradient, 4, {11});
  EXPECT_EQ(c.models[0].at(Stage::kParameters).first->step, 6U);
  EXPECT_EQ(c.models[0].at(Stage::kLoss).first->step, 6U);
  EXPECT_EQ(c.models[0].at(Stage::kLoss).differing, 6U);
  EXPECT_EQ(c.models[0].at(Stage::kData).first, std::nullopt);
}

TEST(FirstDifference, SaysBetweenWhichStepsADifferenceBegan) {
  std::vector<StepRecord> sparse;
  for (std::uint64_t s = 0; s < 50; s += 10) sparse.push_back(step_of(s, 3));
  for (StepRecord& s : sparse) {
    if (s.step >= 30) change_gradient(s, 0, {"head"});
  }
  const RunOptions every{.facts = {{"every", "10"}}};
  const auto c = compare_steps(steps_of(50), sparse, {.facts = {{"every", "1"}}}, every);
  expect_first(c, Stage::kGradient, 30, {10});
  EXPECT_EQ(c.first()->last_identical, 20U);
  EXPECT_EQ(c.first()->common_steps, 5U);
  EXPECT_TRUE(contains(not_compared_texts(*c.first()), "45 of the 50 steps of A"));
}

}  // namespace
}  // namespace presum::compare
