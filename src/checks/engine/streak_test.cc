// SPDX-License-Identifier: Apache-2.0
#include "checks/engine/streak.h"

#include <gtest/gtest.h>

#include <vector>

namespace presum::checks {
namespace {

// Its length after each record.
std::vector<std::uint64_t> lengths(Streak streak, const std::vector<bool>& records) {
  std::vector<std::uint64_t> out;
  for (std::size_t step = 0; step < records.size(); ++step) {
    out.push_back(streak.see(records[step], step));
  }
  return out;
}

TEST(Streak, EndsWithTheFirstRecordInWhichItIsNotSo) {
  EXPECT_EQ(lengths({}, {false, true, true, false, true}),
            (std::vector<std::uint64_t>{0, 1, 2, 0, 1}));
}

TEST(Streak, MayLeaveOutRecords) {
  EXPECT_EQ(lengths({.one_in = 2}, {false, true, false, true, false, false, true}),
            (std::vector<std::uint64_t>{0, 1, 1, 2, 2, 0, 1}));
}

TEST(Streak, BeginsWithItsFirstRecord) {
  Streak streak;
  streak.see(true, 3);
  streak.see(false, 4);
  streak.see(true, 7);
  streak.see(true, 9);
  EXPECT_EQ(streak.first_step, 7U);
  streak.end();
  EXPECT_EQ(streak.see(true, 10), 1U);
  EXPECT_EQ(streak.first_step, 10U);
}

}  // namespace
}  // namespace presum::checks
