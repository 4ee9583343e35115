// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <set>
#include <string_view>

#include "presum/fingerprint.h"

namespace presum {
namespace {

TEST(FingerprintKinds, AscendAndHaveNamesOfTheirOwn) {
  std::set<std::string_view> names;
  std::uint32_t last = 0;
  for (const FingerprintInfo& k : fingerprint_kinds()) {
    EXPECT_LT(last, static_cast<std::uint32_t>(k.kind)) << k.name;
    last = static_cast<std::uint32_t>(k.kind);
    EXPECT_TRUE(names.insert(k.name).second) << k.name;
    EXPECT_FALSE(k.name.empty());
  }
  EXPECT_LT(last, 1024U);
  EXPECT_EQ(names.size(), 69U);
}

TEST(FingerprintKinds, FindsAKindByItsNumber) {
  const FingerprintInfo* seed = find_fingerprint_kind(11);
  ASSERT_NE(seed, nullptr);
  EXPECT_EQ(seed->name, "sampler_seed");
  EXPECT_EQ(seed->expectation, Expectation::kMustMatch);
  EXPECT_FALSE(seed->real);
  EXPECT_TRUE(find_fingerprint_kind(42)->real);
  const FingerprintInfo* weight = find_fingerprint_kind(62);
  ASSERT_NE(weight, nullptr);
  EXPECT_EQ(weight->name, "gradient_weight");
  EXPECT_EQ(weight->expectation, Expectation::kNoise);
  EXPECT_TRUE(weight->real);
}

TEST(FingerprintKinds, DoesNotKnowANumberThatNoKindHas) {
  EXPECT_EQ(find_fingerprint_kind(0), nullptr);
  EXPECT_EQ(find_fingerprint_kind(19), nullptr);
  EXPECT_EQ(find_fingerprint_kind(0xFFFFFFFFU), nullptr);
}

}  // namespace
}  // namespace presum
