// SPDX-License-Identifier: Apache-2.0
#include "detect/e_values.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "detect/pair_panel.h"
#include "detect/partition.h"
#include "detect/rank_panel.h"

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

// Under exchangeability every order of the values is equally likely; the evidence must then grow by
// the weight of one step on average.
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
      panel.update(x, {0, 1}, tables);
      first += panel.evidence(1, Side::kHigh);
      RankPanel fixed(spec, 4, kThetas.size());
      fixed.update(std::vector<double>{1, 2, 3, 4}, {0, 1}, tables);
      const double before = fixed.evidence(1, Side::kHigh);
      fixed.update(x, {1, 1}, tables);
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
    ASSERT_TRUE(panel.update(std::vector<double>{1, 1, 1, 2}, {s, 1}, tables));
    for (std::size_t i = 0; i < 4; ++i) mean[i] += 8 * panel.evidence(i, Side::kHigh) / kSteps;
  }
  const RankTable table(4, kThetas);
  double expected = 0;  // a worker of three that share the lower ranks
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
  EXPECT_FALSE(panel.update(std::vector<double>(4, 2.5), {0, 1}, tables));
  EXPECT_FALSE(panel.update(std::vector<double>{1, 2, kNaN, kNaN}, {1, 1}, tables));
  EXPECT_FALSE(panel.update(std::vector<double>(4, kNaN), {2, 1}, tables));
  EXPECT_EQ(panel.steps(), 0);
  EXPECT_EQ(panel.evidence(0, Side::kHigh), 0);
}

TEST(RankPanel, ComparesTheOthersWithoutTheBlamed) {
  const PanelSpec spec{Statistic::kNorm, true, true, 1, 2, false, 0};
  RankTables tables(kThetas);
  RankPanel panel(spec, 4, kThetas.size());
  panel.blame(3, 0);
  ASSERT_TRUE(panel.update(std::vector<double>{1, 2, 3, 9}, {1, 1}, tables));
  const auto e = [&](std::size_t n, std::size_t rank) {
    const RankTable table(n, kThetas);
    return sum(table.row(rank).first(kThetas.size())) / (8 * double(kThetas.size()));
  };
  EXPECT_NEAR(panel.evidence(2, Side::kHigh), e(3, 2), 1e-12);
  EXPECT_NEAR(panel.evidence(0, Side::kHigh), e(3, 0), 1e-12);
  EXPECT_NEAR(panel.evidence(3, Side::kHigh), e(4, 3), 1e-12);
  EXPECT_DOUBLE_EQ(panel.reading(3)->difference, 7);  // from the median of the three
}

TEST(PairTail, IsFairOverAllPairs) {
  const auto unseen = [](std::uint32_t, std::uint32_t) { return PairTail::Reading{true, 0, 0}; };
  PairTail start;
  start.update(0, 1, 3, {0, 1}, unseen);
  const auto evidence = [](const PairTail& tail) {
    const auto& entries = tail.entries();
    const auto found =
        std::ranges::find_if(entries, [](const auto& e) { return e.i == 0 && e.j == 1; });
    return PairTail::evidence(*found);
  };
  double mean = 0;
  const std::array<std::array<std::uint32_t, 2>, 3> pairs = {{{0, 1}, {0, 2}, {1, 2}}};
  for (const auto& pair : pairs) {
    PairTail tail = start;
    tail.update(pair[0], pair[1], 3, {1, 1}, unseen);
    mean += evidence(tail) / 3;
  }
  EXPECT_NEAR(mean, evidence(start) + double(kPairStakes.size()), 1e-12);
}

TEST(PairTail, ForgetsPairsThatAreLikeAllOthersAgain) {
  const auto unseen = [](std::uint32_t, std::uint32_t) { return PairTail::Reading{true, 0, 0}; };
  PairTail tail;
  std::size_t most = 0;
  for (std::uint64_t s = 0; s < 5000; ++s) {
    const auto i = static_cast<std::uint32_t>(s % 500);
    tail.update(i, 600, 1e5, {s, 1}, unseen);
    most = std::max(most, tail.entries().size());
  }
  EXPECT_LT(most, 250);
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
    ASSERT_TRUE(partition.update(losses, {t, 1}));
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
  EXPECT_FALSE(partition.update({}, {0, 1}));
  EXPECT_FALSE(partition.update({{1, 2, 3}, {4}}, {1, 1}));
  EXPECT_FALSE(partition.update({{1, 1}, {1, 1}}, {2, 1}));
  EXPECT_EQ(partition.steps(), 0);
  EXPECT_TRUE(partition.update({{1, 2}, {4, 5}}, {3, 1}));
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

TEST(Window, FindsTheStartThatTheEvidenceComesFrom) {
  std::array<double, kMoments> block{};
  const std::array losing = {0.1};
  const std::array winning = {5.0};
  Seen seen;
  for (std::uint64_t s = 0; s < 60; ++s) {
    const bool faulty = s >= 40;
    advance(block, faulty ? winning : losing, {s, 1}, seen);
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
  const std::array<double, kMoments> block{};
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
  EXPECT_EQ(scale.distance(kNaN), 0);
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
