// SPDX-License-Identifier: Apache-2.0
#include "checks/engine/text.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <vector>

namespace presum::checks {
namespace {

std::string ranges(std::vector<std::uint32_t> ranks) { return rank_ranges(ranks); }

TEST(Text, WritesRanksAsRanges) {
  EXPECT_EQ(ranges({}), "");
  EXPECT_EQ(ranges({4}), "4");
  EXPECT_EQ(ranges({0, 1}), "0-1");
  EXPECT_EQ(ranges({0, 1, 2, 3, 8}), "0-3,8");
  EXPECT_EQ(ranges({4294967294U, 4294967295U}), "4294967294-4294967295");
}

TEST(Text, CutsRangesThatNobodyReads) {
  std::vector<std::uint32_t> odd;
  for (std::uint32_t r = 1; r < 100; r += 2) odd.push_back(r);
  EXPECT_EQ(rank_ranges(odd), "1,3,5,7,9,11,13,15,17,19,21,23,25,27,29,31,...");
}

TEST(Text, NamesOneSomeAndAllRanks) {
  const std::vector<std::uint32_t> one{3}, two{0, 5};
  EXPECT_EQ(rank_words(one, false), "Rank 3");
  EXPECT_EQ(rank_words(one, true), "Rank 3");
  EXPECT_EQ(rank_words(two, false), "Ranks 0,5");
  EXPECT_EQ(rank_words(two, true), "Both ranks");
}

TEST(Text, WritesNumbersCountsAndHashes) {
  EXPECT_EQ(number(8.0012), "8");
  EXPECT_EQ(number(std::numeric_limits<double>::quiet_NaN()), "unknown");
  const FingerprintInfo& seed = *find_fingerprint_kind(11);
  const FingerprintInfo& rate = *find_fingerprint_kind(42);
  EXPECT_EQ(value_text(seed, 42), "42");
  EXPECT_EQ(value_text(seed, 0xFEDCBA9876543210ULL), "0xfedcba9876543210");
  EXPECT_EQ(value_text(rate, std::bit_cast<std::uint64_t>(1e-3)), "0.001");
}

TEST(Text, ShortensWithoutCuttingACharacter) {
  EXPECT_EQ(shortened("abc", 3), "abc");
  EXPECT_EQ(shortened("abcd", 3), "abc...");
  EXPECT_EQ(shortened("a\xC3\xA9z", 2), "a...");
}

}  // namespace
}  // namespace presum::checks
