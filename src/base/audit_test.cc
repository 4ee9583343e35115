// SPDX-License-Identifier: Apache-2.0
#include "presum/audit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace presum {
namespace {

TEST(AuditRecord, SurvivesTheWayAsFingerprints) {
  const AuditRecord audit{.elements = 1'000'000,
                          .differing = 431'000,
                          .wrong = 3,
                          .relative_l2 = 0x1p-24,
                          .error_max = 0x1p-22,
                          .gradient = Accumulation::kF32,
                          .accumulation = Accumulation::kBF16,
                          .expected = Accumulation::kF64,
                          .order = SumOrder::kRingDown,
                          .division = Division::kBeforeMultiply,
                          .repeat = Repeat::kDifferent,
                          .ulps = UlpPercentiles{1, 2, 30, 4096}};
  const auto back = audit_of(to_fingerprints(audit));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->elements, audit.elements);
  EXPECT_EQ(back->differing, audit.differing);
  EXPECT_EQ(back->wrong, audit.wrong);
  EXPECT_EQ(back->relative_l2, audit.relative_l2);
  EXPECT_EQ(back->error_max, audit.error_max);
  EXPECT_EQ(back->gradient, audit.gradient);
  EXPECT_EQ(back->accumulation, audit.accumulation);
  EXPECT_EQ(back->expected, audit.expected);
  EXPECT_EQ(back->order, audit.order);
  EXPECT_EQ(back->division, audit.division);
  EXPECT_EQ(back->repeat, audit.repeat);
  ASSERT_TRUE(back->ulps);
  EXPECT_EQ(back->ulps->p50, 1U);
  EXPECT_EQ(back->ulps->p90, 2U);
  EXPECT_EQ(back->ulps->p99, 30U);
  EXPECT_EQ(back->ulps->max, 4096U);
  EXPECT_FALSE(audit_of(to_fingerprints({.elements = 3}))->ulps);
}

TEST(AuditRecord, IsNotThereWhereNothingWasAudited) {
  EXPECT_FALSE(audit_of({}));
  const std::vector<FingerprintValue> other = {{70, 1}, {80, 5}};
  EXPECT_FALSE(audit_of(other));
}

TEST(AuditRecord, NumbersOfALaterVersionAreUnknown) {
  const std::vector<FingerprintValue> later = {{80, 5}, {85, ~std::uint64_t{0}}};
  const auto audit = audit_of(later);
  ASSERT_TRUE(audit);
  EXPECT_EQ(audit->order, SumOrder::kUnknown);
  EXPECT_EQ(audit->accumulation, Accumulation::kUnknown);
  EXPECT_EQ(audit->repeat, Repeat::kNotTried);
  EXPECT_TRUE(std::isnan(audit->relative_l2));
  EXPECT_FALSE(audit->ulps);
}

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
