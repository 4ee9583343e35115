// SPDX-License-Identifier: Apache-2.0
#include "detect/least_steps.h"

#include <gtest/gtest.h>

namespace presum::detect {
namespace {

TEST(LeastSteps, FallWithTheNumberOfWorkers) {
  EXPECT_EQ(least_steps(0), 0U);
  EXPECT_EQ(least_steps(1), 0U);
  EXPECT_EQ(least_steps(2), 26U);
  EXPECT_EQ(least_steps(4), 15U);
  EXPECT_EQ(least_steps(8), 10U);
  EXPECT_EQ(least_steps(1024), least_steps(1'000'000));
  EXPECT_LE(least_steps(1024), 6U);
}

}  // namespace
}  // namespace presum::detect
