// SPDX-License-Identifier: Apache-2.0
#include "compare/wording.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "compare/compare.h"
#include "compare/testing.h"

namespace presum::compare {
namespace {

// ---- evidence

std::string text(Detail detail) { return evidence_text({{}, std::move(detail)}); }

std::uint64_t bits(double value) { return std::bit_cast<std::uint64_t>(value); }

constexpr auto kRate = static_cast<std::uint32_t>(FingerprintKind::kLearningRate);
constexpr auto kSettings = static_cast<std::uint32_t>(FingerprintKind::kOptimizerSettings);
constexpr auto kSeed = static_cast<std::uint32_t>(FingerprintKind::kSamplerSeed);

TEST(Evidence, NamesSettingsAndTheirValues) {
  EXPECT_EQ(text(SettingHash{kSettings}), "optimizer_settings");
  EXPECT_EQ(text(SettingHash{9999}), "fingerprint 9999");
  EXPECT_EQ(text(SettingValues{kRate, bits(0.1), bits(1e-5)}),
            "learning_rate: 0.1 in A, 1e-05 in B");
  EXPECT_EQ(text(SettingValues{kSeed, 40, 41}), "sampler_seed: 40 in A, 41 in B");
  EXPECT_EQ(text(SettingValues{kMicroBatches, 2, 4}), "micro_batches: 2 in A, 4 in B");
  EXPECT_EQ(text(FactValues{"optimizer", {"SGD"}, {"Adam", "SGD"}}),
            "optimizer: SGD in A, Adam or SGD in B");
  EXPECT_EQ(text(FactValues{"grad_scaler", {}, {"on"}}), "grad_scaler:  in A, on in B");
}

TEST(Evidence, SaysWhichRowsDiffer) {
  EXPECT_EQ(text(RowCounts{4, 8}), "4 rows in A, 8 in B");
  EXPECT_EQ(text(OtherRows{.differing = 2, .of = 4}), "2 of 4 rows differ");
  EXPECT_EQ(text(OtherRows{.of = 4, .at = {1, 3}, .micro_batches = 4, .first = Position{0, 7, 9}}),
            "the same rows in another order (micro-batches 1, 3 of 4); row 0 is sample 7 of the "
            "dataset in A, 9 in B");
  EXPECT_EQ(text(MorePositions{}), "more positions in one run");
  EXPECT_EQ(text(OtherTensors{.rows_equal = false}),
            "the batch differs, in rows that were not kept or in its other tensors");
}

TEST(Evidence, SaysHowFarNumbersAreApart) {
  EXPECT_EQ(text(ReducedNorms{1.25, 1.5}),
            "norm of the reduced gradient 1.25 in A, 1.5 in B (relative 0.2)");
  EXPECT_EQ(text(ReducedNorms{2, 2}), "norm of the reduced gradient 2 in both");
  EXPECT_EQ(text(LossValues{1, NAN}), "loss 1 in A, nan in B");
  EXPECT_EQ(text(LossValues{NAN, NAN, {2}, 2}), "loss nan in both, micro-batch 2 of 2");
}

TEST(Evidence, NamesThreeLayersAndCountsTheOthers) {
  EXPECT_EQ(text(GradientValues{.layers = {"d", "c", "b", "a"}, .compared = 6, .norm_a = 1}),
            "4 of 6 layers: d, c, b and 1 more; norm 1 in A, 0 in B (relative 1)");
  EXPECT_EQ(text(GradientValues{.layers = {"b", "a"}, .compared = 2}),
            "all 2 layers; norm 0 in both");
  EXPECT_EQ(text(GradientValues{}), "layers are not recorded; norm 0 in both");
  EXPECT_EQ(text(GradientValues{.compared = 1, .only_in_a = {"a"}, .only_in_b = {"b"}}),
            "a only in A; b only in B; the other layers are equal; norm 0 in both");
}

// ---- the cause of the first difference

ModelComparison differing(Stage stage, std::optional<std::uint64_t> last_identical) {
  ModelComparison m;
  m.first = stage;
  m.at(stage).first.emplace();
  m.at(stage).first->step = 6;
  m.last_identical = last_identical;
  m.any_before = true;
  return m;
}

TEST(Between, IsWhatWasNotSeenEqual) {
  EXPECT_EQ(between_text(differing(Stage::kParameters, 3)),
            "reduction and optimizer update of steps 3 to 5, and writes to parameters or buffers");
  EXPECT_EQ(between_text(differing(Stage::kFinal, 6)),
            "reduction and optimizer update of step 6, and writes to parameters or buffers");
  EXPECT_EQ(between_text(differing(Stage::kParameters, std::nullopt)),
            "the weights that the runs began with, and all updates so far: these parameters were "
            "not compared before");
  EXPECT_EQ(between_text(differing(Stage::kReduction, 5)), "the reduction of step 6");
  auto m = differing(Stage::kGradient, 5);
  EXPECT_EQ(between_text(m),
            "the backward pass of step 6, or an update before it of parameters that are not hashed "
            "then");
  m.bracket = Bracket{2, 6};
  EXPECT_TRUE(between_text(m).starts_with("the backward pass of steps 2 to 6, or"));
  m.bracket = Bracket{};
  EXPECT_TRUE(between_text(m).starts_with("the backward pass of step 6, or of an earlier one, or"));
  m.unseen = {Stage::kLoss};
  EXPECT_TRUE(between_text(m).starts_with("the forward and backward pass of step 6"));
  m = differing(Stage::kLoss, std::nullopt);
  m.any_before = false;
  EXPECT_EQ(between_text(m), "the forward pass of step 6");
  EXPECT_EQ(between_text(differing(Stage::kData, 5)), "");
}

// ---- remarks

TEST(Remarks, SayWhereARestartGoesOn) {
  ModelComparison m;
  m.remarks = {Restart{Side::kA, 2, 6, Alignment::kReplays},
               Restart{Side::kB, 3, 0, Alignment::kRestart},
               Restart{Side::kB, 4, 9, Alignment::kAssumed}};
  const std::vector<std::string> texts = {
      "segment 2 of A continues at step 6, which it does again",
      "segment 3 of B continues at step 0, from the beginning",
      "segment 4 of B continues at step 9, which is assumed: no single earlier step is like its "
      "first"};
  EXPECT_EQ(remark_texts(m), texts);
}

TEST(NotCompared, SaysWhyAndAtHowManySteps) {
  using Why = UncomparedStage::Why;
  ModelComparison m;
  m.common_steps = 4;
  m.not_compared = {UncomparedStage{Stage::kData, 1, Why::kRowsNotKept},
                    UncomparedStage{Stage::kLoss, 4, Why::kNoCommonWorker}};
  const std::vector<std::string> texts = {
      "data at 1 of 4 common steps: not all rows of the step were kept",
      "loss: no rank is in both runs"};
  EXPECT_EQ(not_compared_texts(m), texts);
  EXPECT_EQ(obstacle_text({.obstacle = Obstacle::kNothingInSteps}),
            "the common steps hold nothing that can be compared");
}

// ---- what is identical

TEST(Agreement, TellsNumbersOfWorkersThatChangeWithinARun) {
  const TempFolder folder;
  const auto facts = [](const char* workers) {
    return RunOptions{.facts = {{"world_size", workers}, {"every", "1"}}, .final_states = false};
  };
  auto second = steps_sharing_rows(2, 28);
  second.erase(second.begin(), second.begin() + 25);
  for (StepRecord& s : second) {
    s.step -= 25;
    for (WorkerRecord& w : s.workers) w.optimizer_step -= 25;
  }
  record(folder / "a", steps_sharing_rows(2, 28), facts("2"));
  record(folder / "b", steps_sharing_rows(3, 25), facts("3"));
  record(folder / "b", second, facts("2"));
  const auto c = compare_folders(folder / "a", folder / "b");
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
  EXPECT_TRUE(agreement_text(c).starts_with(
      "identical for 2 and 3 ranks (at 25 of the steps, equal numbers at the others), bit for "
      "bit, at 28 common steps: samples, random generators at 3 steps, "))
      << agreement_text(c);
  EXPECT_TRUE(contains(not_compared_texts(c.models[0]),
                       "loss at 25 of 28 common steps: the numbers of ranks differ"));
}

TEST(Agreement, SaysWhichStepsAreCommonThoughTheirCountsAreEqual) {
  auto a = steps_of(8);
  auto b = steps_of(8);
  a.resize(5);
  b.erase(b.begin(), b.begin() + 3);
  EXPECT_TRUE(has(agreement_text(compare_steps(a, b)), "at 2 common steps (A holds 5, B 5)"));
}

void record_two_models(const std::filesystem::path& folder, std::uint64_t begin) {
  std::vector<StepRecord> steps;
  for (std::uint64_t step = 0; step < 3; ++step) {
    steps.push_back(step_of(step + begin, 3));
    steps.push_back(step_of(step, 3));
    steps.back().model.model_index = 1;
  }
  record(folder, steps, {.final_states = false});
}

TEST(Agreement, SpeaksOfEveryModel) {
  const TempFolder folder;
  for (const auto& [name, begin] : {std::pair("a", 0U), std::pair("b", 3U), std::pair("c", 0U)}) {
    record_two_models(folder / name, begin);
  }
  const auto c = compare_folders(folder / "a", folder / "b");
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
  EXPECT_TRUE(has(agreement_text(c), "model 0, data-parallel group 0: nothing was compared"))
      << agreement_text(c);
  EXPECT_TRUE(has(agreement_text(c),
                  "model 1, data-parallel group 0: identical in all that was compared, at 3"));
  EXPECT_TRUE(agreement_text(compare_folders(folder / "a", folder / "c"))
                  .starts_with("2 models, each identical in all that was compared"));
}

}  // namespace
}  // namespace presum::compare
