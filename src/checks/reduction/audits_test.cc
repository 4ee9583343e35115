// SPDX-License-Identifier: Apache-2.0
// reduction-error, reduction-dtype, reduction-nondeterministic.
#include <gtest/gtest.h>

#include "checks/engine/testing.h"
#include "presum/audit.h"

namespace presum::checks {
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

// A modified healthy audit.
template <class Change>
Watched changed(const Change& change) {
  auto audit = healthy();
  change(audit);
  return played(40, audited(audit));
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

TEST(ReductionError, ElementsThatNoRoundingExplainsAreCritical) {
  const Watched w = changed([](AuditRecord& a) { a.wrong = 7; });
  expect(w, "reduction-error",
         {.count = 8, .severity = Severity::kCritical, .first_step = 0, .last_step = 40});
  EXPECT_EQ(number_of(w.first(), "elements_wrong"), 7);
  EXPECT_EQ(w.first().title,
            "7 of 1000 elements that all 8 ranks got from the reduction are further from the sum "
            "than rounding explains");
}

TEST(ReductionDtype, FewerBitsThanTheGradientsAreAWarning) {
  const Watched w = changed([](AuditRecord& a) { a.accumulation = Accumulation::kBF16; });
  expect(w, "reduction-dtype",
         {.severity = Severity::kWarning, .title = "were added in bf16, and they are fp32"});
  EXPECT_EQ(text_of(w.first(), "gradient_format"), "fp32");
  const Watched own =
      changed([](AuditRecord& a) { a.gradient = a.accumulation = Accumulation::kF16; });
  expect(own, "reduction-dtype", {.severity = Severity::kInfo});
}

TEST(ReductionDtype, MoreBitsThanTheGradientsAreFine) {
  expect_quiet(changed([](AuditRecord& a) { a.gradient = Accumulation::kBF16; }));
  const Watched w = changed([](AuditRecord& a) { a.accumulation = Accumulation::kUnknown; });
  EXPECT_EQ(w.check("reduction-dtype").state, CheckRecord::State::kNotTriggered);
}

TEST(ReductionNondeterministic, OtherBitsTheSecondTimeAreAWarning) {
  const Watched w = changed([](AuditRecord& a) { a.repeat = Repeat::kDifferent; });
  expect(w, "reduction-nondeterministic", {.severity = Severity::kWarning});
  const Watched once = changed([](AuditRecord& a) { a.repeat = Repeat::kNotTried; });
  EXPECT_EQ(once.check("reduction-nondeterministic").state, CheckRecord::State::kNotTriggered);
}

}  // namespace
}  // namespace presum::checks
