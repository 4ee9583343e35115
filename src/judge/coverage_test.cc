// SPDX-License-Identifier: Apache-2.0
#include "judge/coverage.h"

#include <gtest/gtest.h>

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
  EXPECT_EQ(verdict(none, covered(500), false), Verdict::kInsufficientEvidence);
  EXPECT_EQ(verdict(bad, covered(500), false), Verdict::kInconsistent);
  EXPECT_EQ(verdict(none, covered(500, kNoneMade), true), Verdict::kInsufficientEvidence);
  Coverage lost = covered(500);
  lost.steps_lost = 1;
  EXPECT_EQ(verdict(none, lost, true), Verdict::kInsufficientEvidence);
}

TEST(Coverage, AddsUpModelsAndTheirShards) {
  const ModelKey a{1, 0, 0}, b{1, 0, 4}, c{1, 1, 0};
  std::vector<StepRecord> steps;
  for (std::uint64_t s = 0; s < 3; ++s) steps.push_back(step_of(a, s, 4, 4));
  for (const std::uint64_t s : {0U, 1U, 3U}) steps.push_back(step_of(b, s, 4, 3));
  steps.push_back(step_of(c, 0, 6, 1));
  const Coverage all = cover(models_of(steps), kOneMade);
  EXPECT_EQ(all.steps_logged, 7U);
  EXPECT_EQ(all.steps_lost, 1U) << "partial steps at the end may be under way";
  EXPECT_EQ(all.steps_compared, 3U);
  EXPECT_EQ(all.workers_expected, 8U) << "shards have workers of their own";
  EXPECT_EQ(all.workers_seen, 7U);
  EXPECT_EQ(all.checks_made(), 1U);
}

TEST(Coverage, OfNoStepIsNothing) {
  const Coverage none = cover({}, {});
  EXPECT_EQ(none.steps_logged, 0U);
  EXPECT_EQ(none.workers_expected, 0U);
  EXPECT_EQ(none.checks_made(), 0U);
}

}  // namespace
}  // namespace presum::judge
