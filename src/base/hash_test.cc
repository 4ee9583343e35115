// SPDX-License-Identifier: Apache-2.0
#include "base/hash.h"

#include <gtest/gtest.h>

namespace presum {
namespace {

TEST(Hash, SplitmixMatchesItsPublishedSequence) {
  // First outputs of the reference generator seeded with 1234567.
  std::uint64_t state = 1234567;
  EXPECT_EQ(splitmix64(state), 6457827717110365317ULL);
  state += 0x9E3779B97F4A7C15ULL;
  EXPECT_EQ(splitmix64(state), 3203168211198807973ULL);
}

TEST(Hash, NameHashIsFixedForever) {
  EXPECT_EQ(name_hash(""), mix64(0xCBF29CE484222325ULL));
  EXPECT_NE(name_hash("a"), name_hash("b"));
  EXPECT_NE(name_hash("ab"), name_hash("ba"));
}

}  // namespace
}  // namespace presum
