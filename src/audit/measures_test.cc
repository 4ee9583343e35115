// SPDX-License-Identifier: Apache-2.0
#include "audit/measures.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace presum::audit {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

Rows<double> rows_of(const std::vector<std::vector<double>>& workers) {
  Rows<double> rows(workers.size());
  rows.count = workers.front().size();
  for (std::size_t w = 0; w < workers.size(); ++w) std::ranges::copy(workers[w], rows[w].begin());
  return rows;
}

Measures measured(const std::vector<std::vector<double>>& workers, std::vector<double> result,
                  std::uint32_t divisor = 1) {
  const auto rows = rows_of(workers);
  Exact<double> exact(workers.size(), Dtype::kF64, divisor);
  Measures m;
  m.add<double>(result, exact.truth(rows), Dtype::kF64, divisor);
  return m;
}

TEST(Measures, AreZeroForTheExactSum) {
  const auto m = measured({{1, 2}, {3, 4}}, {4, 6});
  EXPECT_EQ(m.elements, 2U);
  EXPECT_EQ(m.differing, 0U);
  EXPECT_EQ(m.relative_l2(), 0);
  EXPECT_EQ(m.error_max, 0);
  EXPECT_EQ(m.ulps.largest(), 0U);
}

TEST(Measures, SeeALostBitUnderCancellation) {
  // 1 + 2^-60 - 1: the result is all error.
  const auto m = measured({{1}, {0x1p-60}, {-1}}, {0});
  EXPECT_EQ(m.differing, 1U);
  EXPECT_EQ(m.relative_l2(), 1);
  EXPECT_DOUBLE_EQ(m.error_max, 0x1p-61);
}

TEST(Measures, AreThoseOfTheDefinitions) {
  const double up = std::nextafter(4.0, 5.0);
  const auto m = measured({{1, 2, 5}, {3, 4, 5}}, {up, 6, 10});
  const double error = up - 4;
  EXPECT_DOUBLE_EQ(m.relative_l2(), error / std::sqrt(16 + 36 + 100.0));
  EXPECT_DOUBLE_EQ(m.error_max, error / 4);
  EXPECT_DOUBLE_EQ(m.error_mean(), error / 4 / 3);
  EXPECT_EQ(m.differing, 1U);
  EXPECT_EQ(m.ulps.percentile(0.5), 0U);
  EXPECT_EQ(m.ulps.percentile(0.99), 1U);
}

TEST(Measures, OfAMeanCompareWithTheMean) {
  EXPECT_EQ(measured({{1}, {2}, {3}}, {2}, 3).differing, 0U);
  EXPECT_EQ(measured({{1}, {2}, {3}}, {6}, 3).differing, 1U);
}

TEST(Measures, CountWhatIsNotFiniteAndLeaveItOutOfMeans) {
  const auto m = measured({{kNaN, 1, kInf, 1}, {1, 1, 1, 1}}, {kNaN, kInf, kInf, 2});
  EXPECT_EQ(m.elements, 4U);
  EXPECT_EQ(m.nonfinite, 3U);
  EXPECT_EQ(m.differing, 1U);  // the infinity, which no rank had
  EXPECT_EQ(m.relative_l2(), 0);
}

TEST(Measures, OfDoublesWhosePartialSumsOverflowLeaveThatElementOut) {
  const auto m = measured({{1.7e308, 1}, {1.7e308, 2}, {-1.7e308, 3}}, {1.7e308, 6});
  EXPECT_EQ(m.differing, 0U);
  EXPECT_EQ(m.nonfinite, 1U);
  EXPECT_EQ(m.relative_l2(), 0);
  EXPECT_EQ(m.error_mean(), 0);
}

TEST(Measures, OfTheSmallestAndLargestDoublesDoNotDependOnTheirScale) {
  const double expected = std::sqrt(1.0 / (16 + 36));
  for (const double scale : {0x1p-1070, 0x1p-700, 1.0, 0x1p700, 0x1p1018}) {
    const auto m = measured({{scale, 2 * scale}, {3 * scale, 4 * scale}}, {5 * scale, 6 * scale});
    EXPECT_DOUBLE_EQ(m.relative_l2(), expected) << scale;
  }
  EXPECT_DOUBLE_EQ(measured({{0x1p-700, 4}, {0, 0}}, {0, 5}).relative_l2(), 0.25);
  EXPECT_DOUBLE_EQ(measured({{0x1p-700, 0x1p700}, {0, 0}}, {0, 0}).relative_l2(), 1);
  EXPECT_TRUE(std::isinf(measured({{1}, {-1}}, {1}).relative_l2()));
}

TEST(Measures, OfNothingAreUndefined) {
  const Measures m;
  EXPECT_TRUE(std::isnan(m.relative_l2()));
  EXPECT_TRUE(std::isnan(m.error_mean()));
  EXPECT_EQ(m.ulps.percentile(0.5), 0U);
}

TEST(ErrorOf, IsRightBeyondTheLastBitOfADouble) {
  EXPECT_EQ(error_of(1, 1, 0x1p-80, 1), -0x1p-80);
  const double third = 1.0 / 3;  // 3 * third is 1 - 2^-54
  EXPECT_DOUBLE_EQ(error_of(third, 1, 0, 3), -0x1p-54 / 3);
}

TEST(UlpHistogram, PercentilesAreThoseOfTheSortedList) {
  UlpHistogram histogram;
  std::vector<std::uint64_t> list;
  for (std::uint64_t i = 0; i < 1000; ++i) list.push_back(i * i % 4096);
  for (const std::uint64_t ulps : list) histogram.add(ulps);
  std::ranges::sort(list);
  for (const double share : {0.001, 0.5, 0.9, 0.99, 1.0}) {
    const auto at = static_cast<std::size_t>(std::ceil(share * 1000)) - 1;
    EXPECT_EQ(histogram.percentile(share), list[at]) << share;
  }
}

TEST(UlpHistogram, KnowsHugeDistancesToAPowerOfTwoAndTheLargestExactly) {
  UlpHistogram histogram;
  for (int i = 0; i < 99; ++i) histogram.add(5000);
  histogram.add(~std::uint64_t{0});
  EXPECT_EQ(histogram.percentile(0.5), 8191U);
  EXPECT_EQ(histogram.percentile(1), ~std::uint64_t{0});
  EXPECT_EQ(histogram.largest(), ~std::uint64_t{0});
}

}  // namespace
}  // namespace presum::audit
