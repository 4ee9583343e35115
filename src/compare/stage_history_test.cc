// SPDX-License-Identifier: Apache-2.0
#include "compare/stage_history.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "compare/compare.h"
#include "compare/testing.h"
#include "compare/wording.h"

namespace presum::compare {
namespace {

using Kind = FingerprintKind;

TEST(LastEqualByRank, IsThatOfTheWorkerThatWasSeenTheLongestTimeAgo) {
  LastEqualByRank equal;
  EXPECT_EQ(equal.of({}), std::nullopt);
  equal.equal(3, {1, 2});
  equal.equal(5, {2});
  EXPECT_EQ(equal.of({1, 2}), 3U);
  EXPECT_EQ(equal.of({2}), 5U);
  EXPECT_EQ(equal.of({2, 4}), std::nullopt);
  EXPECT_EQ(equal.of({}), 5U);
}

TEST(OtherWorlds, FindsRunsIdenticalThatDifferInTheNumberOfWorkersOnly) {
  const auto c = compare_steps(steps_sharing_rows(2), steps_sharing_rows(3));
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
  EXPECT_EQ(agreement_text(c),
            "identical for 2 and 3 ranks, bit for bit, at 6 common steps: samples, parameters, "
            "reduction at 2 steps, final parameters; not compared: random generators, token "
            "weight, loss, local "
            "gradient");
  const ModelComparison& m = c.models[0];
  EXPECT_TRUE(m.other_worlds);
  EXPECT_EQ(m.at(Stage::kConfiguration).differing, 6U);
  EXPECT_EQ(m.at(Stage::kData).compared, 6U);
  EXPECT_EQ(m.at(Stage::kParameters).compared, 6U);
  EXPECT_EQ(m.at(Stage::kReduction).compared, 2U);
  EXPECT_EQ(m.at(Stage::kGradient).compared, 0U);
  EXPECT_TRUE(contains(not_compared_texts(m), "local-gradient: the numbers of ranks differ"));
}

TEST(OtherWorlds, ComparesWhatIsOfAllWorkersWhereTheirNumbersDiffer) {
  auto b = steps_sharing_rows(3);
  for (WorkerRecord& w : b[5].workers) w.states[0].value ^= 1;
  const auto c = compare_steps(steps_sharing_rows(2), b);
  expect_first(c, Stage::kConfiguration, 0, {});
  EXPECT_TRUE(contains(texts(first(c)), "ranks: 2 in A, 3 in B"));
  EXPECT_EQ(c.first()->first_number, Stage::kParameters);
  EXPECT_FALSE(c.first()->other_worlds);
}

TEST(OtherWorlds, FindsOtherSettingsBesideOtherNumbersOfWorkers) {
  auto b = steps_sharing_rows(3);
  change_workers(b, [](WorkerRecord& w) { set(w, Kind::kLearningRate, 0.05); });
  expect_first(compare_steps(steps_sharing_rows(2), b), Stage::kConfiguration, 0, {});
  const auto facts = compare_steps(steps_sharing_rows(2), steps_sharing_rows(3),
                                   {.facts = {{"model", "M"}}}, {.facts = {{"model", "N"}}});
  expect_first(facts, Stage::kConfiguration, 0, {});
}

TEST(OtherWorlds, DoesNotCallOtherNumbersOfWorkersIdenticalForTheirStartAlone) {
  const RunOptions open{.final_states = false};
  auto a = steps_sharing_rows(2);
  auto b = steps_sharing_rows(3);
  for (auto* steps : {&a, &b}) steps->resize(1);
  expect_first(compare_steps(a, b, open, open), Stage::kConfiguration, 0, {});
}

// Run B has three ranks, and one of them changes from step 1 on.
Comparison with_one_changed(std::size_t worker, const std::function<void(WorkerRecord&)>& change) {
  auto b = steps_sharing_rows(3);
  for (StepRecord& s : b) {
    if (s.step > 0) change(s.workers[worker]);
  }
  return compare_steps(steps_sharing_rows(2), b);
}

TEST(OtherWorlds, AreNotIdenticalIfAnyWorkerHasOtherParameters) {
  const auto c = with_one_changed(2, [](WorkerRecord& w) { w.states[0].value ^= 1; });
  EXPECT_EQ(c.outcome, Outcome::kDifferent);
  EXPECT_EQ(c.models[0].at(Stage::kParameters).differing, 5U);
  EXPECT_EQ(c.models[0].at(Stage::kFinal).differing, 1U);
  EXPECT_TRUE(contains(texts(*c.models[0].at(Stage::kParameters).first),
                       "rank 12 of B differs from the other"));
}

TEST(OtherWorlds, AreNotIdenticalIfAnyWorkerOfTheFirstRunHasOtherParameters) {
  auto a = steps_sharing_rows(2);
  for (StepRecord& s : a) s.workers[1].states[0].value ^= s.step > 0;
  const auto c = compare_steps(a, steps_sharing_rows(3));
  EXPECT_EQ(c.outcome, Outcome::kDifferent);
  EXPECT_TRUE(contains(texts(*c.models[0].at(Stage::kParameters).first),
                       "rank 11 of A differs from the other"));
}

TEST(OtherWorlds, AreNotIdenticalIfAnyWorkerHasAnotherReducedGradient) {
  const auto c = with_one_changed(2, [](WorkerRecord& w) { w.reduced_fingerprint ^= 1; });
  EXPECT_EQ(c.outcome, Outcome::kDifferent);
  EXPECT_GT(c.models[0].at(Stage::kReduction).differing, 0U);
}

TEST(OtherWorlds, AreNotIdenticalIfAnyWorkerHasOtherSettings) {
  const auto c =
      with_one_changed(2, [](WorkerRecord& w) { set(w, FingerprintKind::kLearningRate, 9.0); });
  EXPECT_EQ(c.outcome, Outcome::kDifferent);
  EXPECT_TRUE(c.models[0].at(Stage::kConfiguration).first.has_value());
}

TEST(OtherWorlds, SayThatPacketsOfAWorkerAreMissing) {
  auto b = steps_sharing_rows(3);
  remove_worker(b[3], 2);
  EXPECT_TRUE(contains(not_compared_texts(compare_steps(steps_sharing_rows(2), b).models[0]),
                       "ranks whose packet is missing in a run, at 1 of 6 common steps"));
}

void without_reductions(std::vector<StepRecord>& steps) {
  change_workers(steps, [](WorkerRecord& w) {
    w.reduced_norm = NAN;
    w.reduced_fingerprint = 0;
  });
}

TEST(Agreement, OfOtherWorldsNeedsMoreThanOneSliceAfterTheStart) {
  auto a = steps_sharing_rows(2, 2);
  auto b = steps_sharing_rows(3, 2);
  for (auto* steps : {&a, &b}) {
    without_reductions(*steps);
    for (WorkerRecord& w : (*steps)[1].workers) w.states = {w.states.back()};
  }
  const RunOptions open{.final_states = false};
  EXPECT_EQ(compare_steps(a, b, open, open).outcome, Outcome::kDifferent);
  EXPECT_EQ(compare_steps(a, b).outcome, Outcome::kIdentical) << "final parameters suffice";
}

TEST(Agreement, OfOtherWorldsComesFromEverySliceOrASum) {
  const RunOptions open{.final_states = false};
  auto a = steps_sharing_rows(2, 26);
  auto b = steps_sharing_rows(3, 26);
  without_reductions(a);
  without_reductions(b);
  EXPECT_EQ(compare_steps(a, b, open, open).outcome, Outcome::kIdentical);
  a.resize(25);
  EXPECT_EQ(compare_steps(a, b, open, open).outcome, Outcome::kDifferent) << "slice 0 is not seen";
  EXPECT_EQ(compare_steps(steps_sharing_rows(2), steps_sharing_rows(3), open, open).outcome,
            Outcome::kIdentical)
      << "the sum of step 5";
}

}  // namespace
}  // namespace presum::compare
