// SPDX-License-Identifier: Apache-2.0
// reduction-error, reduction-dtype, reduction-nondeterministic.
#include "diagnose/audits.h"

#include <gtest/gtest.h>

#include "diagnose/testing.h"
#include "presum/audit.h"

namespace presum::diagnose {
namespace {

AuditRecord healthy() {
  return {.elements = 1000,
          .differing = 430,
          .relative_l2 = 0x1p-24,
          .error_max = 0x1p-23,
          .gradient = Accumulation::kF32,
          .accumulation = Accumulation::kF32,
          .order = SumOrder::kRing,
          .division = Division::kBeforeMultiply,
          .repeat = Repeat::kEqual};
}

// Rank 0 audits every tenth step.
Break audited(AuditRecord audit) {
  return [audit](StepRecord& r) {
    if (r.step % 10 != 0) return;
    r.workers[0].audit = audit;
  };
}

Finding found(const AuditRecord& audit) {
  Watched w = played(40, audited(audit));
  EXPECT_LE(w.ids().size(), 1U);
  return w.first();
}

TEST(Audits, OfAHealthyReductionPass) {
  Watched w = played(40, audited(healthy()));
  EXPECT_TRUE(w.findings().empty());
  for (const char* check : {"reduction-error", "reduction-dtype", "reduction-nondeterministic"}) {
    EXPECT_EQ(w.check(check).state, CheckRecord::State::kPassed) << check;
  }
}

TEST(Audits, ThatWereNotMadeAreNotPossible) {
  Watched w = played(40);
  for (const char* check : {"reduction-error", "reduction-dtype", "reduction-nondeterministic"}) {
    EXPECT_EQ(w.check(check).state, CheckRecord::State::kNotPossible) << check;
  }
}

TEST(Audits, OfOneWorkerAreNone) {
  Watched w = played({.workers = 1}, 40, audited(healthy()));
  EXPECT_EQ(w.check("reduction-error").state, CheckRecord::State::kNotPossible);
}

TEST(ReductionError, ElementsThatNoRoundingExplainsAreCritical) {
  auto audit = healthy();
  audit.wrong = 7;
  const Finding f = found(audit);
  EXPECT_EQ(f.check, "reduction-error");
  EXPECT_EQ(f.severity, Severity::kCritical);
  EXPECT_EQ(f.ranks.size(), 8U);
  EXPECT_EQ(f.first_step, 0U);
  EXPECT_EQ(f.last_step, 40U);
  EXPECT_EQ(number_of(f, "elements_wrong"), 7);
  EXPECT_EQ(f.title,
            "7 of 1000 elements that all 8 ranks got from the reduction are further from the sum "
            "than rounding explains");
}

TEST(ReductionDtype, FewerBitsThanTheGradientsAreAWarning) {
  auto audit = healthy();
  audit.accumulation = Accumulation::kBF16;
  const Finding f = found(audit);
  EXPECT_EQ(f.check, "reduction-dtype");
  EXPECT_EQ(f.severity, Severity::kWarning);
  EXPECT_EQ(f.title, "The gradients of all 8 ranks were added in bf16, and they are fp32");
}

TEST(ReductionDtype, SixteenBitGradientsAddedInTheirOwnFormatAreInformation) {
  auto audit = healthy();
  audit.gradient = audit.accumulation = Accumulation::kF16;
  const Finding f = found(audit);
  EXPECT_EQ(f.check, "reduction-dtype");
  EXPECT_EQ(f.severity, Severity::kInfo);
}

TEST(ReductionDtype, MoreBitsThanTheGradientsAreFine) {
  auto audit = healthy();
  audit.gradient = Accumulation::kBF16;
  EXPECT_EQ(found(audit).check, "");
  audit.accumulation = Accumulation::kUnknown;
  Watched w = played(40, audited(audit));
  EXPECT_EQ(w.check("reduction-dtype").state, CheckRecord::State::kNotTriggered);
}

TEST(ReductionNondeterministic, OtherBitsTheSecondTimeAreAWarning) {
  auto audit = healthy();
  audit.repeat = Repeat::kDifferent;
  const Finding f = found(audit);
  EXPECT_EQ(f.check, "reduction-nondeterministic");
  EXPECT_EQ(f.severity, Severity::kWarning);
  audit.repeat = Repeat::kNotTried;
  Watched w = played(40, audited(audit));
  EXPECT_EQ(w.check("reduction-nondeterministic").state, CheckRecord::State::kNotTriggered);
}

}  // namespace
}  // namespace presum::diagnose
