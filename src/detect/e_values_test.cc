// SPDX-License-Identifier: Apache-2.0
#include "detect/e_values.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <vector>

namespace presum::detect {
namespace {

constexpr std::array kThetas = {0.25, 1.0, 4.0};

TEST(NormalQuantile, InvertsTheDistribution) {
  EXPECT_DOUBLE_EQ(normal_quantile(0.5), 0);
  EXPECT_NEAR(normal_quantile(0.975), 1.959963984540054, 1e-13);
  EXPECT_NEAR(normal_quantile(1e-9), -5.997807015008182, 1e-12);
  for (double p = 0.001; p < 1; p += 0.013) {
    EXPECT_NEAR(0.5 * std::erfc(-normal_quantile(p) / std::sqrt(2.0)), p, 1e-15);
  }
}

TEST(RankTable, HasMeanOneInEveryColumn) {
  for (const std::size_t n : {1U, 2U, 3U, 4U, 7U, 8U, 64U, 1025U}) {
    const RankTable table(n, kThetas);
    for (std::size_t k = 0; k < 2 * kThetas.size(); ++k) {
      double total = 0;
      for (std::size_t r = 0; r < n; ++r) total += table.row(r)[k];
      EXPECT_NEAR(total / double(n), 1, 1e-12) << n;
    }
  }
}

TEST(RankTable, BetsOnHighRanksFirstAndOnLowRanksMirrored) {
  const RankTable table(8, kThetas);
  for (std::size_t k = 0; k < kThetas.size(); ++k) {
    for (std::size_t r = 0; r < 8; ++r) {
      EXPECT_TRUE(r == 0 || table.row(r)[k] > table.row(r - 1)[k]);
      EXPECT_EQ(table.row(r)[k], table.row(7 - r)[k + kThetas.size()]);
    }
  }
  EXPECT_NEAR(table.row(7)[2], 7.3, 0.05);  // of at most 8
}

TEST(RankTable, OfOneWorkerSaysNothing) {
  const RankTable table(1, kThetas);
  for (const double e : table.row(0)) EXPECT_EQ(e, 1);
}

TEST(Window, FindsTheStartThatTheEvidenceComesFrom) {
  std::array<double, kSnapshots> block{};
  const std::array losing = {0.1};
  const std::array winning = {5.0};
  ReadingSums seen;
  for (std::uint64_t s = 0; s < 60; ++s) {
    const bool faulty = s >= 40;
    advance(block, faulty ? winning : losing, s, seen);
    seen.count += 1;
    seen.effect += faulty ? 3 : -1;
    seen.difference += faulty ? 0.5 : 0;
  }
  const Window window = window_of(block, 1, 0, 1, seen, 59);
  EXPECT_NEAR(double(window.first_step), 40, 1);
  EXPECT_NEAR(window.effect, 3, 0.1);
  EXPECT_NEAR(window.difference, 0.5, 0.02);
}

TEST(Window, OfNothingIsNow) {
  const std::array<double, kSnapshots> block{};
  EXPECT_EQ(window_of(block, 1, 0, 1, {}, 7).first_step, 7);
}

TEST(RobustScale, EstimatesTheStandardDeviationForAnyNumberOfWorkers) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal(0, 3);
  for (const std::size_t n : {2U, 3U, 4U, 5U, 8U, 9U, 10U, 31U}) {
    double mean = 0;
    for (int run = 0; run < 200; ++run) {
      RobustScale scale;
      for (int step = 0; step < 50; ++step) {
        std::vector<double> x(n);
        for (double& v : x) v = normal(random);
        std::vector<double> copy = x;
        const double m = median(copy);
        for (double& v : x) v = std::abs(v - m);
        scale.update(x);
      }
      mean += scale.value() / 200;
    }
    EXPECT_NEAR(mean, 3, 0.1) << n;
  }
}

TEST(RobustScale, DistancesAreBounded) {
  RobustScale scale;
  EXPECT_EQ(scale.distance(0), 0);
  EXPECT_EQ(scale.distance(-1e-300), -1e3);
  EXPECT_EQ(scale.distance(std::nan("")), 0);
}

TEST(Median, OfEvenOddAndNone) {
  std::vector<double> even = {4, 1, 3, 2};
  std::vector<double> odd = {9, 1, 5};
  std::vector<double> none;
  EXPECT_EQ(median(even), 2.5);
  EXPECT_EQ(median(odd), 5);
  EXPECT_TRUE(std::isnan(median(none)));
}

}  // namespace
}  // namespace presum::detect
