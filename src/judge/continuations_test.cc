// SPDX-License-Identifier: Apache-2.0
#include "judge/continuations.h"

#include <gtest/gtest.h>

namespace presum::judge {
namespace {

StepCount count(const ModelKey& model, std::uint64_t steps) {
  return {.model = model, .steps = steps};
}

Continuation goes_on(const ModelKey& model, std::uint32_t segment, std::uint64_t step,
                     std::uint64_t before, std::uint64_t watched) {
  return {.model = model,
          .from_segment = segment,
          .from_step = step,
          .steps_before = before,
          .detector_steps = watched};
}

Continuation anew(const ModelKey& model) { return {.model = model, .reason = "why"}; }

using Counts = std::vector<StepCount>;
using All = std::vector<Continuation>;

TEST(TrainingSteps, OfModelsAndGroupsThatTrainAtTheSameTimeAreThoseOfOne) {
  EXPECT_EQ(training_steps(Counts{}, {}), 0U);
  EXPECT_EQ(training_steps(Counts{count({1, 0, 0}, 100), count({1, 1, 0}, 100)}, {}), 100U);
  EXPECT_EQ(training_steps(Counts{count({1, 0, 0}, 90), count({1, 0, 4}, 100)}, {}), 100U);
}

TEST(TrainingSteps, OfTrainingsThatDoNotGoOnFromEachOtherAddUp) {
  const Counts two = {count({1, 0, 0}, 12), count({2, 0, 0}, 12)};
  EXPECT_EQ(training_steps(two, All{anew({2, 0, 0})}), 24U);
  EXPECT_EQ(training_steps(two, {}), 24U);
}

TEST(TrainingSteps, ThatARestartDidAgainCountOnce) {
  const Counts two = {count({1, 0, 0}, 63), count({2, 0, 0}, 40)};
  EXPECT_EQ(training_steps(two, All{goes_on({2, 0, 0}, 1, 60, 60, 60)}), 100U);
  const Counts short_one = {count({1, 0, 0}, 63), count({2, 0, 0}, 2)};
  EXPECT_EQ(training_steps(short_one, All{goes_on({2, 0, 0}, 1, 60, 60, 60)}), 63U);
  const Counts three = {count({1, 0, 0}, 63), count({2, 0, 0}, 40), count({3, 0, 0}, 50)};
  const All all = {goes_on({2, 0, 0}, 1, 60, 60, 60), goes_on({3, 0, 0}, 2, 30, 90, 90)};
  EXPECT_EQ(training_steps(three, all), 140U);
}

TEST(TrainingSteps, OfASegmentAloneAreItsOwn) {
  EXPECT_EQ(training_steps(Counts{count({2, 0, 0}, 40)}, All{goes_on({2, 0, 0}, 1, 60, 60, 60)}),
            40U);
}

TEST(ContinuationTexts, SayWhetherDetectorsGoOn) {
  EXPECT_TRUE(continuation_texts({}).empty());
  EXPECT_EQ(
      continuation_texts(All{goes_on({2, 0, 0}, 1, 60, 60, 58)}),
      std::vector<std::string>{"segment 2 continues from step 60 of segment 1: detectors keep "
                               "what they learned in 58 steps"});
  EXPECT_EQ(continuation_texts(All{anew({2, 0, 0})}),
            std::vector<std::string>{"segment 2: detectors start over: why"});
  auto fewer = goes_on({2, 0, 0}, 1, 60, 60, 0);
  fewer.reason = "why";
  EXPECT_EQ(continuation_texts(All{fewer}),
            std::vector<std::string>{
                "segment 2 continues from step 60 of segment 1: detectors start over, "
                "as why"});
}

TEST(ContinuationTexts, OfModelsThatGoOnAlikeAreOne) {
  const All all = {anew({2, 0, 0}), anew({2, 0, 4}), goes_on({2, 1, 0}, 1, 60, 60, 58),
                   anew({3, 0, 0})};
  EXPECT_EQ(continuation_texts(all),
            (std::vector<std::string>{
                "segment 2: detectors start over: why",
                "segment 2, model 1 continues from step 60 of segment 1: detectors keep what they "
                "learned in 58 steps",
                "segment 3: detectors start over: why"}));
}

}  // namespace
}  // namespace presum::judge
