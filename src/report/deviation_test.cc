// SPDX-License-Identifier: Apache-2.0
#include "report/deviation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace presum::report {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<double> one_step(const std::vector<double>& values) { return Deviation().step(values); }

TEST(Deviation, EqualWorkersDoNotDeviate) {
  EXPECT_EQ(one_step({2, 2, 2}), (std::vector<double>{0, 0, 0}));
}

TEST(Deviation, RoundingIsNoDeviation) {
  EXPECT_EQ(one_step({0.9, 0.9 + 2e-16}), (std::vector<double>{0, 0}));
  EXPECT_GT(one_step({0.9, 0.9 + 1e-9})[1], 0);
}

TEST(Deviation, IsCountedFromTheOthersInSpreads) {
  // Sorted distances from the median 3: 0, 1, 1, 2, 97; spread 1.4826.
  const auto z = one_step({1, 2, 3, 4, 100});
  EXPECT_NEAR(z[4], (100 - 2.5) / 1.4826, 1e-9);
  EXPECT_NEAR(z[0], (1 - 3.5) / 1.4826, 1e-9);
}

TEST(Deviation, OneWorkerApartFromEqualOnesStandsOut) {
  const auto z = one_step({1, 1, 1, 5});
  EXPECT_EQ(z[0], 0);
  EXPECT_NEAR(z[3], 4 / 1.2533, 1e-9);
}

TEST(Deviation, ValuesThatAreNotFiniteAreLeftOut) {
  const auto z = one_step({kNan, 1, std::numeric_limits<double>::infinity(), 1});
  EXPECT_TRUE(std::isnan(z[0]));
  EXPECT_TRUE(std::isnan(z[2]));
  EXPECT_EQ(z[1], 0);
}

TEST(Deviation, IsUndefinedForOneWorkerAndForNone) {
  EXPECT_TRUE(std::isnan(one_step({3})[0]));
  EXPECT_TRUE(one_step({}).empty());
}

TEST(Deviation, TheScaleRemembersEarlierSteps) {
  Deviation deviation;
  for (int i = 0; i < 50; ++i) deviation.step(std::vector<double>{-1, 0, 1, 0.5, -0.5});
  const auto z = deviation.step(std::vector<double>{-1e-9, 0, 1e-9, 0, 0.5});
  EXPECT_LT(z[4], 1);
}

}  // namespace
}  // namespace presum::report
