// SPDX-License-Identifier: Apache-2.0
#include "compare/numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "compare/compare.h"
#include "compare/testing.h"
#include "compare/wording.h"
#include "presum/audit.h"

namespace presum::compare {
namespace {

using Names = std::vector<std::string>;

TEST(Numbers, TakesTwoNanForEqual) {
  auto steps = steps_of(3);
  steps[1].workers[0].loss = NAN;
  steps[1].workers[0].loss_nonfinite = true;
  steps[1].workers[0].micro = {};
  steps[1].workers[0].grad_norm = NAN;
  EXPECT_EQ(compare_steps(steps, steps).outcome, Outcome::kIdentical);
}

TEST(Numbers, FindsALayerThatBeganOtherwise) {
  const auto c = changed_from(0, [](StepRecord& s) {
    for (WorkerRecord& w : s.workers) w.states[1].value ^= 1;
  });
  expect_first(c, Stage::kParameters, 0, {10, 11, 12});
  EXPECT_EQ(first(c).layers, Names{"layers.2"});
}

TEST(Numbers, FindsABufferOfOneWorker) {
  const auto c = changed_at(3, [](StepRecord& s) { s.workers[2].states[4].value ^= 1; });
  expect_first(c, Stage::kParameters, 3, {12});
  EXPECT_NE(what_text(first(c)).find("buffers"), std::string::npos);
}

TEST(Numbers, NamesTheFirstMicroBatchWhoseTokensWeighOtherwise) {
  const auto c = changed_at(8, [](StepRecord& s) {
    s.workers[1].micro[1].token_weight = 0.2;
    s.workers[1].loss += 1;
  });
  expect_first(c, Stage::kTokenWeight, 8, {11});
  EXPECT_TRUE(contains(texts(first(c)), "one target token of micro-batch 2 weighs "));
  const auto rounded = changed_at(
      8, [](StepRecord& s) { s.workers[1].micro[1].token_weight = std::nextafter(0.1, 1); });
  EXPECT_EQ(rounded.outcome, Outcome::kIdentical);
}

TEST(Numbers, FindsALossAndItsMicroBatch) {
  const auto c = changed_at(8, [](StepRecord& s) {
    s.workers[1].loss = std::nextafter(s.workers[1].loss, 9);
    s.workers[1].micro[1].loss = std::nextafter(s.workers[1].micro[1].loss, 9);
  });
  expect_first(c, Stage::kLoss, 8, {11});
  EXPECT_TRUE(contains(texts(first(c)), "micro-batch 2 of 2"));
}

TEST(Numbers, FindsALossThatIsNanInOneRun) {
  const auto c = changed_at(8, [](StepRecord& s) {
    s.workers[1].loss = NAN;
    s.workers[1].loss_nonfinite = true;
  });
  expect_first(c, Stage::kLoss, 8, {11});
}

TEST(Numbers, FindsOneLayersGradientEvenIfEveryNormStays) {
  const auto c = changed_at(7, [](StepRecord& s) { change_gradient(s, 2, {"layers.2"}); });
  expect_first(c, Stage::kGradient, 7, {12});
  EXPECT_EQ(first(c).layers, Names{"layers.2"});
  EXPECT_EQ(texts(first(c)), Names{"1 of 4 layers: layers.2; norm 3.5 in both"});
  EXPECT_EQ(c.first()->last_identical, 6U);
}

TEST(Numbers, NamesLayersInTheOrderOfTheBackwardPass) {
  const auto c = changed_at(7, [](StepRecord& s) {
    change_gradient(s, 2, {"embed", "layers.2", "layers.10"});
  });
  EXPECT_EQ(first(c).layers, (Names{"layers.10", "layers.2", "embed"}));
}

TEST(Numbers, NamesALayerThatOneRunAloneHasAGradientOf) {
  const auto c = changed_at(2, [](StepRecord& s) {
    s.workers[0].fingerprint ^= 1;
    std::erase_if(s.groups, [](const GroupRecord& g) { return g.id == name_hash("layers.2"); });
  });
  EXPECT_TRUE(contains(texts(first(c)), "layers.2 only in A; the other layers are equal"));
}

TEST(Numbers, FallsBackOnNormsOfLayers) {
  auto a = steps_of(3);
  auto b = steps_of(3);
  for (auto* steps : {&a, &b}) {
    for (StepRecord& s : *steps) {
      for (GroupRecord& g : s.groups) g.fingerprints.clear();
    }
  }
  b[1].workers[0].fingerprint ^= 1;
  EXPECT_TRUE(contains(texts(first(compare_steps(a, b))), "no norm of a layer shows it"));
  group_of(b[1], "head").norms[0] = 9;
  EXPECT_EQ(first(compare_steps(a, b)).layers, Names{"head"});
}

TEST(Numbers, TellsAReductionOfEqualGradients) {
  const auto c = changed_at(5, [](StepRecord& s) {
    for (WorkerRecord& w : s.workers) {
      w.reduced_fingerprint ^= 1;
      w.reduced_norm = std::nextafter(w.reduced_norm, 2);
    }
  });
  expect_first(c, Stage::kReduction, 5, {10, 11, 12});
  EXPECT_TRUE(c.first()->unseen.empty());
}

std::vector<StepRecord> audited(std::uint64_t differing, SumOrder order) {
  auto out = steps_of(6);
  const AuditRecord audit{.elements = 100,
                          .differing = differing,
                          .accumulation = Accumulation::kF32,
                          .order = order,
                          .division = Division::kOnce};
  change_workers(out, [&](WorkerRecord& w) { w.audit = audit; });
  return out;
}

TEST(Numbers, TakesAuditsForNoSettings) {
  const auto c = compare_steps(audited(3, SumOrder::kTree), audited(4, SumOrder::kRing));
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
  EXPECT_EQ(c.models[0].at(Stage::kConfiguration).differing, 0U);
}

TEST(Numbers, SaysWhatAuditsSayOfReductionsThatDiffer) {
  auto b = audited(4, SumOrder::kRing);
  for (WorkerRecord& w : b[5].workers) w.reduced_fingerprint ^= 1;
  const auto c = compare_steps(audited(3, SumOrder::kTree), b);
  expect_first(c, Stage::kReduction, 5, {10, 11, 12});
  EXPECT_TRUE(contains(texts(first(c)),
                       "as last audited: 3 of 100 elements not correctly rounded, fp32 sum, order "
                       "tree, division once in A; 4 of 100"));
  const auto one = compare_steps(steps_of(6), b);
  EXPECT_TRUE(contains(texts(first(one)), "as last audited: not audited in A; 4 of 100"));
}

TEST(Numbers, DoesNotCompareWhereNoGradientWasRead) {
  const auto c = changed_at(4, [](StepRecord& s) {
    for (WorkerRecord& w : s.workers) {
      w.skipped_parameters = 9;
      w.fingerprint = 0;
      w.grad_norm = NAN;
    }
  });
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
  EXPECT_EQ(c.models[0].at(Stage::kGradient).compared, kSteps - 1);
  EXPECT_TRUE(contains(not_compared_texts(c.models[0]),
                       "local-gradient at 1 of 12 common steps: no gradient was read"));
}

TEST(Numbers, FindsParametersThatDifferAfterTheLastStepOnly) {
  const TempFolder folder;
  const auto steps = steps_of(3);
  record(folder / "a", steps);
  auto b = steps;
  for (WorkerRecord& w : b.back().workers) w.states[3].value ^= 1;  // in the final notes
  record(folder / "b", b);
  const auto c = compare_folders(folder / "a", folder / "b");
  EXPECT_EQ(c.models[0].at(Stage::kFinal).differing, 1U);
  EXPECT_EQ(c.models[0].at(Stage::kFinal).first->layers, Names{"head"});
}

}  // namespace
}  // namespace presum::compare
