// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "presum/audit.h"
#include "presum/finding.h"

namespace presum {
namespace {

TEST(AuditNames, AreThoseOfTheDocuments) {
  EXPECT_STREQ(to_string(Accumulation::kBF16), "bf16");
  EXPECT_STREQ(to_string(Accumulation::kUnknown), "unknown");
  EXPECT_STREQ(to_string(SumOrder::kRingDown), "ring-down");
  EXPECT_STREQ(to_string(Division::kBeforeMultiply), "before-multiply");
  EXPECT_EQ(significand_bits(Accumulation::kF16), 11);
  EXPECT_EQ(significand_bits(Accumulation::kUnknown), 0);
}

TEST(Finding, NamesEverySeverityStateAndVerdict) {
  EXPECT_STREQ(to_string(Severity::kInfo), "info");
  EXPECT_STREQ(to_string(Severity::kWarning), "warning");
  EXPECT_STREQ(to_string(Severity::kCritical), "critical");
  EXPECT_STREQ(to_string(CheckRecord::State::kFound), "found");
  EXPECT_STREQ(to_string(CheckRecord::State::kPassed), "passed");
  EXPECT_STREQ(to_string(CheckRecord::State::kNotTriggered), "not-triggered");
  EXPECT_STREQ(to_string(CheckRecord::State::kNotPossible), "not-possible");
  EXPECT_STREQ(to_string(Verdict::kConsistent), "consistent");
  EXPECT_STREQ(to_string(Verdict::kInconsistent), "inconsistent");
  EXPECT_STREQ(to_string(Verdict::kInsufficientEvidence), "insufficient-evidence");
}

TEST(Finding, NamesAValueThatCameOutOfADamagedRun) {
  EXPECT_STREQ(to_string(static_cast<Severity>(9)), "unknown");
  EXPECT_STREQ(to_string(static_cast<CheckRecord::State>(9)), "unknown");
  EXPECT_STREQ(to_string(static_cast<Verdict>(9)), "unknown");
}

}  // namespace
}  // namespace presum
