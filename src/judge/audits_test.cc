// SPDX-License-Identifier: Apache-2.0
#include "judge/documents.h"

#include <gtest/gtest.h>

#include <cmath>

#include "judge/testing.h"

namespace presum::judge {
namespace {

using testing::RunOnDisk;
using testing::step_record;

AuditRecord healthy() {
  return {.elements = 100,
          .differing = 12,
          .relative_l2 = 3e-8,
          .error_max = 5e-8,
          .gradient = Accumulation::kF32,
          .accumulation = Accumulation::kF32,
          .order = SumOrder::kRing,
          .division = Division::kBeforeMultiply,
          .repeat = Repeat::kEqual,
          .ulps = UlpPercentiles{0, 1, 9, 64}};
}

AuditedStep at(std::uint64_t step, const AuditRecord& audit, std::uint32_t model_index = 0) {
  return {{1, model_index, 0, step}, 0, audit};
}

TEST(AuditSummary, OfNoAuditIsNone) { EXPECT_TRUE(summarize({}).empty()); }

TEST(AuditSummary, AddsUpWhatWasAudited) {
  AuditRecord other = healthy();
  other.wrong = 1;
  other.relative_l2 = 2e-7;
  other.order = SumOrder::kUnknown;
  other.repeat = Repeat::kDifferent;
  other.ulps = UlpPercentiles{0, 2, 5, 128};
  AuditRecord unmeasured = healthy();
  unmeasured.relative_l2 = std::nan("");
  unmeasured.repeat = Repeat::kNotTried;
  unmeasured.ulps.reset();
  const std::vector<AuditedStep> audits = {at(2, healthy()), at(4, other), at(6, unmeasured)};
  const auto all = summarize(audits);
  ASSERT_EQ(all.size(), 1U);
  const AuditSummary& a = all[0];
  EXPECT_EQ(a.first_step, 2U);
  EXPECT_EQ(a.last_step, 6U);
  EXPECT_EQ(a.steps, 3U);
  EXPECT_EQ(a.audits, 3U);
  EXPECT_EQ(a.elements, 300U);
  EXPECT_EQ(a.differing, 36U);
  EXPECT_EQ(a.wrong, 1U);
  EXPECT_EQ(a.relative_l2, 2e-7);
  EXPECT_EQ(a.ulps->p90, 2U);
  EXPECT_EQ(a.ulps->p99, 9U);
  EXPECT_EQ(a.ulps->max, 128U);
  EXPECT_EQ(a.accumulation, "fp32");
  EXPECT_EQ(a.order, "ring (2), unknown (1)");
  EXPECT_EQ(a.division, "before-multiply");
  EXPECT_EQ(a.repeated, 2U);
  EXPECT_EQ(a.repeats_differing, 1U);
}

TEST(AuditSummary, KeepsModelsApart) {
  const std::vector<AuditedStep> audits = {at(0, healthy()), at(0, healthy(), 1)};
  ASSERT_EQ(summarize(audits).size(), 2U);
  EXPECT_EQ(summarize(audits)[1].model.model_index, 1U);
}

TEST(AuditSummary, WithoutAnErrorIsNullInJson) {
  AuditRecord zeros = healthy();
  zeros.relative_l2 = std::nan("");
  const std::vector<AuditedStep> audits = {at(0, zeros)};
  EXPECT_TRUE(audits_json(summarize(audits))[0]["relative_l2"].is_null());
  zeros.ulps.reset();
  const std::vector<AuditedStep> unknown = {at(0, zeros)};
  EXPECT_TRUE(audits_json(summarize(unknown))[0]["ulps"].is_null());
}

// From a run log, which stores only what changes from audit to audit.
TEST(AuditSummary, IsPartOfAJudgment) {
  const testing::TempFolder folder;
  RunOnDisk run(folder / "run", "x", 2);
  for (std::uint64_t step = 0; step < 4; ++step) {
    auto record = step_record(run.segment(), step, 2);
    AuditRecord audit = healthy();
    audit.relative_l2 = 0x1p-30 * static_cast<double>(step + 1);
    if (step % 2 == 0) record.workers[0].audit = audit;
    run.add(record);
  }
  const RunLog log = run.log();
  const auto audits = log.audits();
  ASSERT_TRUE(audits);
  ASSERT_EQ(audits->size(), 2U);
  EXPECT_EQ((*audits)[1].key.step, 2U);
  EXPECT_EQ((*audits)[1].audit.relative_l2, 3 * 0x1p-30);
  EXPECT_EQ((*audits)[1].audit.order, SumOrder::kRing);
  const auto judgment = judge(log, *log.steps());
  ASSERT_TRUE(judgment);
  ASSERT_EQ(judgment->audits.size(), 1U);
  EXPECT_EQ(judgment->audits[0].audits, 2U);
  EXPECT_EQ(judgment_json(*judgment)["audits"][0]["elements"], 200U);
}

}  // namespace
}  // namespace presum::judge
