// SPDX-License-Identifier: Apache-2.0
#include "detect/rank_panel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

namespace presum::detect {
namespace {

constexpr std::array kThetas = {0.25, 1.0, 4.0};

// Under exchangeability, every order of the values is equally likely; the evidence must then grow
// by the weight of one step on average.
TEST(RankPanel, IsFairOverAllOrders) {
  const PanelSpec spec{Statistic::kNorm, true, true, 0.8, 2, false, 0};
  for (const std::vector<double>& values :
       {std::vector<double>{1, 2, 3, 5}, {1, kNaN, 3, 5}, {7, 8, kNaN, kNaN}}) {
    std::vector<std::size_t> order(4);
    std::iota(order.begin(), order.end(), 0U);
    double first = 0;
    double second = 0;
    double count = 0;
    do {
      RankPanel panel(spec, 4, kThetas.size());
      RankTables tables(kThetas);
      std::vector<double> x(4);
      for (std::size_t i = 0; i < 4; ++i) x[i] = values[order[i]];
      if (std::isnan(x[1])) continue;
      panel.update(x, 0, tables);
      first += panel.evidence(1, Side::kHigh);
      RankPanel fixed(spec, 4, kThetas.size());
      fixed.update(std::vector<double>{1, 2, 3, 4}, 0, tables);
      const double before = fixed.evidence(1, Side::kHigh);
      fixed.update(x, 1, tables);
      second += fixed.evidence(1, Side::kHigh) - before;
      ++count;
    } while (std::ranges::next_permutation(order).found);
    EXPECT_NEAR(first / count, 0.8 / 8, 1e-12);
    EXPECT_NEAR(second / count, 0.8 / 8, 1e-12);
  }
}

TEST(RankPanel, BreaksTiesFairly) {
  const PanelSpec spec{Statistic::kLoss, true, true, 1, 2, true, 0};
  RankTables tables(kThetas);
  std::array<double, 4> mean{};
  constexpr int kSteps = 20000;
  for (std::uint64_t s = 0; s < kSteps; ++s) {
    RankPanel panel(spec, 4, kThetas.size());
    ASSERT_TRUE(panel.update(std::vector<double>{1, 1, 1, 2}, s, tables));
    for (std::size_t i = 0; i < 4; ++i) mean[i] += 8 * panel.evidence(i, Side::kHigh) / kSteps;
  }
  const RankTable table(4, kThetas);
  double expected = 0;  // of a rank among three that share the lower ranks
  for (std::size_t r = 0; r < 3; ++r) {
    for (std::size_t k = 0; k < kThetas.size(); ++k) expected += table.row(r)[k] / 9;
  }
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(mean[i], expected, 0.02);
  EXPECT_NEAR(mean[0] + mean[1] + mean[2] + mean[3], 4, 1e-9);
}

TEST(RankPanel, SaysNothingWhereAllAreEqualOrTooFew) {
  const PanelSpec spec{Statistic::kDirection, true, true, 1, 3, false, 0};
  RankTables tables(kThetas);
  RankPanel panel(spec, 4, kThetas.size());
  EXPECT_FALSE(panel.update(std::vector<double>(4, 2.5), 0, tables));
  EXPECT_FALSE(panel.update(std::vector<double>{1, 2, kNaN, kNaN}, 1, tables));
  EXPECT_FALSE(panel.update(std::vector<double>(4, kNaN), 2, tables));
  EXPECT_EQ(panel.steps(), 0);
  EXPECT_EQ(panel.evidence(0, Side::kHigh), 0);
}

TEST(RankPanel, ComparesTheOthersWithoutTheBlamed) {
  const PanelSpec spec{Statistic::kNorm, true, true, 1, 2, false, 0};
  RankTables tables(kThetas);
  RankPanel panel(spec, 4, kThetas.size());
  panel.memory().blame(3, 0);
  ASSERT_TRUE(panel.update(std::vector<double>{1, 2, 3, 9}, 1, tables));
  const auto e = [&](std::size_t n, std::size_t rank) {
    const RankTable table(n, kThetas);
    return sum(table.row(rank).first(kThetas.size())) / (8 * double(kThetas.size()));
  };
  EXPECT_NEAR(panel.evidence(2, Side::kHigh), e(3, 2), 1e-12);
  EXPECT_NEAR(panel.evidence(0, Side::kHigh), e(3, 0), 1e-12);
  EXPECT_NEAR(panel.evidence(3, Side::kHigh), e(4, 3), 1e-12);
  EXPECT_DOUBLE_EQ(panel.reading(3)->difference, 7);  // from the median of the three
}

}  // namespace
}  // namespace presum::detect
