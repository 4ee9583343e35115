// SPDX-License-Identifier: Apache-2.0
#include "step/rows.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace presum::step {
namespace {

using Hashes = std::vector<std::uint64_t>;

std::uint64_t offer(RowMatcher& matcher, std::uint64_t batch, Hashes hashes, bool trains = true) {
  return matcher.offer(batch, {{0, std::move(hashes)}}, trains);
}

TEST(RowMatcher, FindsEachRowOnceAndNothingThatWasNotOffered) {
  RowMatcher matcher;
  EXPECT_FALSE(matcher.take(1, 9, true));
  offer(matcher, 1, {10, 11, 11});
  EXPECT_FALSE(matcher.take(12, 1, true));
  EXPECT_EQ(matcher.take(10, 1, true), (RowOrigin{1, 0, 0, true}));
  EXPECT_FALSE(matcher.take(10, 1, true));
  EXPECT_EQ(matcher.take(11, 1, true)->row, 2U);
  EXPECT_EQ(matcher.take(11, 1, true)->row, 1U);
}

TEST(RowMatcher, ForgetsTheOldestOfManyRowsButKeepsAFewBatches) {
  RowMatcher matcher;
  const std::size_t large = RowMatcher::kRowsMax;
  for (std::uint64_t batch = 1; batch <= RowMatcher::kBatchesMin; ++batch) {
    EXPECT_EQ(offer(matcher, batch, Hashes(large, batch)), 1U);
  }
  EXPECT_EQ(offer(matcher, 9, {1}), 2U);
  EXPECT_EQ(matcher.take(1, 9, true)->batch, 9U);
}

// Compares with a linear search through everything that is known.
TEST(RowMatcher, AgreesWithASearchThroughEverything) {
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 200; ++trial) {
    RowMatcher matcher;
    std::vector<std::pair<std::uint64_t, RowOrigin>> all;
    for (std::uint64_t batch = 1; batch < 60; ++batch) {
      const bool trains = random() % 3 != 0;
      Hashes hashes(random() % 4);
      for (std::uint32_t row = 0; row < hashes.size(); ++row) {
        hashes[row] = random() % 6;
        all.emplace_back(hashes[row], RowOrigin{batch, 0, row, trains});
      }
      offer(matcher, batch, hashes, trains);
      const std::uint64_t offered = batch - random() % batch;
      const bool trained = random() % 2 == 0;
      const std::uint64_t asked = random() % 6;
      std::vector<RowOrigin> alike;
      std::vector<RowOrigin> others;
      for (const auto& [hash, row] : all) {
        if (hash != asked || row.batch > offered) continue;
        (row.trains == trained ? alike : others).push_back(row);
      }
      const auto& best = alike.empty() ? others : alike;
      const auto taken = matcher.take(asked, offered, trained);
      ASSERT_EQ(taken.has_value(), !best.empty());
      if (best.empty()) continue;
      ASSERT_EQ(*taken, best.back());
      std::erase_if(all, [&](const auto& one) {
        return one.first == asked && (one.second.batch < taken->batch || one.second == *taken);
      });
    }
  }
}

}  // namespace
}  // namespace presum::step
