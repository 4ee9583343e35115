// SPDX-License-Identifier: Apache-2.0
#include "detect/alarm_memory.h"

#include <gtest/gtest.h>

#include <vector>

namespace presum::detect {
namespace {

using Readings = std::vector<std::optional<Reading>>;

TEST(AlarmMemory, BlamesForFiveHundredSteps) {
  AlarmMemory memory(3);
  EXPECT_FALSE(memory.blamed(1, 0));
  memory.blame(1, 100);
  EXPECT_TRUE(memory.blamed(1, 100));
  EXPECT_TRUE(memory.blamed(1, 599));
  EXPECT_FALSE(memory.blamed(1, 600));
  EXPECT_FALSE(memory.blamed(0, 100));
}

TEST(AlarmMemory, CoolsDownByWorkerAndSide) {
  AlarmMemory memory(3);
  memory.raised(2, Side::kLow, 0, -1);
  EXPECT_TRUE(memory.cooling(2, Side::kLow, 50, 50));
  EXPECT_FALSE(memory.cooling(2, Side::kLow, 51, 50));
  EXPECT_FALSE(memory.cooling(2, Side::kHigh, 1, 50));
  EXPECT_FALSE(memory.cooling(1, Side::kLow, 1, 50));
}

TEST(AlarmMemory, FollowsWhatWasRaisedUntilItsMeanIsHalf) {
  AlarmMemory memory(2);
  memory.raised(0, Side::kHigh, 0, 2);
  for (int s = 0; s < 100; ++s) memory.follow(Readings{Reading{2, 0}, std::nullopt});
  ASSERT_EQ(memory.lasting().size(), 1);
  EXPECT_EQ(memory.lasting().front(), std::pair(0U, Side::kHigh));
  for (int s = 0; s < 100; ++s) memory.follow(Readings{std::nullopt, std::nullopt});
  EXPECT_EQ(memory.lasting().size(), 1) << "a rank that is away shows nothing";
  for (int s = 0; s < 100; ++s) memory.follow(Readings{Reading{0, 0}, std::nullopt});
  EXPECT_TRUE(memory.lasting().empty());
}

TEST(AlarmMemory, EndsWithTheCountOfSteps) {
  AlarmMemory memory(1);
  memory.blame(0, 7);
  memory.raised(0, Side::kHigh, 7, 1);
  memory.restart();
  EXPECT_FALSE(memory.blamed(0, 7));
  EXPECT_FALSE(memory.cooling(0, Side::kHigh, 7, 50));
  EXPECT_TRUE(memory.lasting().empty());
}

}  // namespace
}  // namespace presum::detect
