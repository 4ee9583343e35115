// SPDX-License-Identifier: Apache-2.0
#include "detect/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <vector>

namespace presum::detect {
namespace {

TEST(PartitionBets, HaveMeanOneAndPreferSmallRanks) {
  std::array<double, Partition::kBets> total{};
  for (std::size_t r = 1; r <= Partition::kAssignments; ++r) {
    const auto e = partition_bets(r);
    for (std::size_t k = 0; k < e.size(); ++k) {
      EXPECT_GT(e[k], 0);
      EXPECT_LE(e[k], partition_bets(1)[k]);
      total[k] += e[k] / double(Partition::kAssignments);
    }
  }
  for (const double mean : total) EXPECT_NEAR(mean, 1, 1e-12);
}

TEST(Partition, IsFairUnderRandomAssignment) {
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal;
  std::array<double, Partition::kTests> mean{};
  constexpr int kTrials = 20000;
  for (std::uint64_t t = 0; t < kTrials; ++t) {
    std::vector<std::vector<double>> losses(3);
    for (std::size_t i = 0; i < 3; ++i) {
      for (std::size_t k = 0; k < 2 + i; ++k) losses[i].push_back(normal(random));
    }
    Partition partition;
    ASSERT_TRUE(partition.update(losses, true, t));
    for (const auto test : {Partition::kEven, Partition::kUneven, Partition::kClose}) {
      mean[test] += partition.evidence(test) / kTrials;
    }
  }
  EXPECT_NEAR(mean[Partition::kEven], 0.03, 0.001);
  EXPECT_NEAR(mean[Partition::kUneven], 0.03, 0.001);
  EXPECT_NEAR(mean[Partition::kClose], 0.04, 0.0015);
}

TEST(Partition, NeedsTwoWorkersWithTwoLossesThatDiffer) {
  Partition partition;
  EXPECT_FALSE(partition.update({}, true, 0));
  EXPECT_FALSE(partition.update({{1, 2, 3}, {4}}, true, 1));
  EXPECT_FALSE(partition.update({{1, 1}, {1, 1}}, true, 2));
  EXPECT_TRUE(partition.update({{1, 2}, {4, 5}}, true, 3));
}

TEST(Closest, IsTheSmallestDistance) {
  std::mt19937_64 random(6);
  std::uniform_real_distribution<double> uniform;
  std::vector<double> scratch;
  for (const std::size_t n : {2U, 3U, 8U, 9U, 40U}) {
    std::vector<double> x(n);
    for (double& v : x) v = uniform(random);
    double least = 2;
    for (std::size_t a = 0; a < n; ++a) {
      for (std::size_t b = 0; b < a; ++b) least = std::min(least, std::abs(x[a] - x[b]));
    }
    EXPECT_DOUBLE_EQ(closest(x, scratch), least) << n;
  }
  EXPECT_TRUE(std::isnan(closest(std::vector{1.0}, scratch)));
}

}  // namespace
}  // namespace presum::detect
