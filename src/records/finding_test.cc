// SPDX-License-Identifier: Apache-2.0
#include "presum/finding.h"

#include <gtest/gtest.h>

namespace presum {
namespace {

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
