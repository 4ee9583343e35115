// SPDX-License-Identifier: Apache-2.0
#include "judge/coverage.h"

#include <gtest/gtest.h>

#include <array>

#include "judge/testing.h"

namespace presum::judge {
namespace {

constexpr CheckCounts kOneMade = {0, 1, 0, 0};
constexpr CheckCounts kNoneMade = {0, 0, 0, 1};

StepRecord step_of(const ModelKey& model, std::uint64_t step, std::uint32_t expected,
                   std::uint32_t seen) {
  StepRecord out;
  out.model = model;
  out.step = step;
  out.workers_expected = expected;
  out.workers_seen = seen;
  return out;
}

Coverage covered(std::uint64_t steps, const CheckCounts& checks = kOneMade) {
  return {.steps_logged = steps, .steps_compared = steps, .checks = checks};
}

TEST(Verdict, WeighsFindingsAndSteps) {
  Finding info, warning;
  warning.severity = Severity::kWarning;
  const std::vector<Finding> none, harmless{info}, bad{info, warning};
  EXPECT_EQ(verdict(none, covered(4), true), Verdict::kInsufficientEvidence);
  EXPECT_EQ(verdict(none, covered(5), true), Verdict::kConsistent);
  EXPECT_EQ(verdict(harmless, covered(5), true), Verdict::kConsistent);
  EXPECT_EQ(verdict(bad, covered(0), true), Verdict::kInconsistent);
  for (const char* check : {"slow-rank", "stall"}) {
    Finding slow;
    slow.check = check;
    slow.severity = Severity::kWarning;
    EXPECT_EQ(verdict(std::array{slow}, covered(5), true), Verdict::kConsistent) << check;
    slow.severity = Severity::kCritical;
    EXPECT_EQ(verdict(std::array{slow}, covered(5), true), Verdict::kInconsistent) << check;
  }
  EXPECT_EQ(verdict(none, covered(500), false), Verdict::kInsufficientEvidence);
  EXPECT_EQ(verdict(bad, covered(500), false), Verdict::kInconsistent);
  EXPECT_EQ(verdict(none, covered(500, kNoneMade), true), Verdict::kInsufficientEvidence);
  Coverage lost = covered(500);
  lost.steps_lost = 1;
  EXPECT_EQ(verdict(none, lost, true), Verdict::kInsufficientEvidence);
}

TEST(Coverage, AddsUpWorkersOfShardsAndNoSteps) {
  const ModelKey a{1, 0, 0}, b{1, 0, 4}, c{1, 1, 0};
  std::vector<StepRecord> steps;
  for (std::uint64_t s = 0; s < 3; ++s) steps.push_back(step_of(a, s, 4, 4));
  for (const std::uint64_t s : {0U, 1U, 3U}) steps.push_back(step_of(b, s, 4, 3));
  steps.push_back(step_of(c, 0, 6, 1));
  const Coverage all = cover(models_of(steps), {}, kOneMade);
  EXPECT_EQ(all.steps_logged, 3U);
  EXPECT_EQ(all.steps_lost, 1U) << "partial steps at the end may be under way";
  EXPECT_EQ(all.steps_compared, 3U);
  EXPECT_EQ(all.workers_expected, 8U) << "shards have ranks of their own";
  EXPECT_EQ(all.workers_seen, 7U);
  EXPECT_EQ(all.checks_made(), 1U);
}

StepRecord numbered(std::uint64_t step, bool reduced, std::uint64_t unreduced) {
  StepRecord out = step_of({1, 0, 0}, step, 2, 1);
  out.workers_left_out = 1;
  out.workers.emplace_back();
  out.workers[0].number = {.reductions = 0, .unreduced = unreduced};
  if (!reduced) out.workers[0].number.window = 0;
  return out;
}

// Every tenth reduction, with an unreduced step after the first one: the step numbers are 0, 1, 11,
// 21.
TEST(Coverage, UnreducedStepsDoNotChangeHowManyAreExpected) {
  std::vector<StepRecord> steps = {numbered(0, true, 0), numbered(1, false, 0)};
  for (std::uint64_t r = 10; r < 100; r += 10) steps.push_back(numbered(r + 1, true, 1));
  EXPECT_EQ(cover(models_of(steps), {}, kOneMade).steps_lost, 0U);
  steps.erase(steps.begin() + 5);
  EXPECT_EQ(cover(models_of(steps), {}, kOneMade).steps_lost, 1U);
}

TEST(Coverage, OfLocalStepsTheirOwnCountTellsWhatIsLost) {
  std::vector<StepRecord> steps;
  for (std::uint64_t step = 0; step < 20; ++step) steps.push_back(numbered(step, false, step));
  EXPECT_EQ(cover(models_of(steps), {}, kOneMade).steps_lost, 0U);
  steps.erase(steps.begin() + 5);
  EXPECT_EQ(cover(models_of(steps), {}, kOneMade).steps_lost, 1U);
}

TEST(Coverage, OfNoStepIsNothing) {
  const Coverage none = cover({}, {}, {});
  EXPECT_EQ(none.steps_logged, 0U);
  EXPECT_EQ(none.workers_expected, 0U);
  EXPECT_EQ(none.checks_made(), 0U);
}

ModelSteps steps(std::uint32_t segment, std::uint32_t model_index, std::uint64_t count,
                 std::uint32_t workers) {
  ModelSteps model({segment, model_index, 0});
  for (std::uint64_t s = 0; s < count; ++s) {
    StepRecord record = testing::step_record(segment, s, workers);
    record.model.model_index = model_index;
    model.add(record);
  }
  return model;
}

TEST(Coverage, SaysWhatStatisticsNeedOfTheModelThatWasWatchedTheLeast) {
  EXPECT_TRUE(cover({}, {}, {}).statistics_judged());
  const std::vector<ModelSteps> alone{steps(1, 0, 3, 1)};
  EXPECT_TRUE(cover(alone, {}, {}).statistics_judged()) << "there is nothing to compare";
  const std::vector<ModelSteps> few{steps(1, 0, 20, 2), steps(1, 1, 30, 2)};
  EXPECT_EQ(statistics_text(cover(few, {}, {})),
            "statistics need 26 steps with 2 ranks, and saw 20");
}

TEST(Coverage, OfSegmentsStatisticsSawWhatTheirDetectorsGoOnWith) {
  const std::vector<ModelSteps> two{steps(1, 0, 20, 2), steps(2, 0, 6, 2)};
  std::vector<Continuation> how{{.model = {2, 0, 0}}};
  EXPECT_EQ(
      statistics_text(cover(two, how, {})),
      "statistics need 26 steps with 2 ranks, and saw 6 since they started over in segment 2");
  how[0].detector_steps = 19;
  EXPECT_EQ(statistics_text(cover(two, how, {})),
            "statistics need 26 steps with 2 ranks, and saw 25");
  how[0].detector_steps = 20;
  EXPECT_EQ(statistics_text(cover(two, how, {})), "");
  const std::vector<ModelSteps> last{two[1]};
  EXPECT_TRUE(cover(last, how, {}).statistics_judged());
}

}  // namespace
}  // namespace presum::judge
