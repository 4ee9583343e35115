// SPDX-License-Identifier: Apache-2.0
#include "presum/audit.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace presum
