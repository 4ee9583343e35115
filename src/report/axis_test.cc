// SPDX-License-Identifier: Apache-2.0
#include "report/axis.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace presum::report {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<std::uint64_t> counting(std::size_t count, std::uint64_t first = 0) {
  std::vector<std::uint64_t> out(count);
  std::iota(out.begin(), out.end(), first);
  return out;
}

std::size_t count_nan(const std::vector<double>& values) {
  return static_cast<std::size_t>(
      std::count_if(values.begin(), values.end(), [](double v) { return std::isnan(v); }));
}

TEST(StepAxis, FewStepsKeepTheirOwnRows) {
  const StepAxis axis(counting(5, 10), 8);
  EXPECT_FALSE(axis.decimated());
  EXPECT_EQ(axis.rows(), counting(5, 10));
  EXPECT_EQ(axis.bucket(12), 2U);
  EXPECT_EQ(axis.bucket(9), std::nullopt);
  EXPECT_EQ(axis.bucket(15), std::nullopt);
}

TEST(StepAxis, AMissingStretchIsAnEmptyRow) {
  const StepAxis axis(std::vector<std::uint64_t>{0, 1, 2, 7, 8}, 8);
  EXPECT_EQ(axis.rows(), (std::vector<std::uint64_t>{0, 1, 2, 3, 7, 8}));
  Column column(axis);
  for (const std::uint64_t step : {0, 1, 2, 7, 8}) column.add(*axis.bucket(step), 1);
  EXPECT_EQ(count_nan(column.rows()), 1U);
  EXPECT_TRUE(std::isnan(column.rows()[3]));
}

TEST(StepAxis, StepsAtAnEvenDistanceHaveNoGap) {
  const StepAxis axis(std::vector<std::uint64_t>{0, 10, 20, 30}, 8);
  EXPECT_EQ(axis.buckets(), 4U);
}

TEST(StepAxis, ManyStepsShareBuckets) {
  for (const std::size_t steps : {17UL, 100UL, 1'000UL, 100'003UL}) {
    const StepAxis axis(counting(steps, 5), 8);
    EXPECT_TRUE(axis.decimated());
    EXPECT_LE(axis.buckets(), 8U);
    EXPECT_EQ(axis.rows().size(), 2 * axis.buckets());
    EXPECT_EQ(axis.bucket(5), 0U);
    EXPECT_EQ(axis.bucket(4 + steps), axis.buckets() - 1);
    const auto rows = axis.rows();
    EXPECT_TRUE(std::is_sorted(rows.begin(), rows.end()));
  }
}

TEST(StepAxis, NoOverflowAtTheEndOfTheNumbers) {
  const auto last = std::numeric_limits<std::uint64_t>::max();
  std::vector<std::uint64_t> steps = counting(40);
  steps.push_back(last);
  const StepAxis axis(steps, 4);
  EXPECT_EQ(axis.bucket(last), axis.buckets() - 1);
}

TEST(Column, ASpikeOfOneStepSurvives) {
  const StepAxis axis(counting(100'000), 500);
  for (const std::uint64_t at : {0UL, 777UL, 54'321UL, 99'999UL}) {
    Column column(axis);
    for (std::uint64_t s = 0; s < 100'000; ++s) column.add(*axis.bucket(s), s == at ? 9.0 : 1.0);
    const auto rows = column.rows();
    EXPECT_EQ(*std::max_element(rows.begin(), rows.end()), 9.0);
    EXPECT_EQ(std::count(rows.begin(), rows.end(), 9.0), 1);
  }
}

TEST(Column, TheLowestStandsFirstSoThatBandsKeepTheirOrder) {
  const StepAxis axis(counting(40), 2);
  Column column(axis);
  for (std::uint64_t s = 0; s < 20; ++s) column.add(0, s == 3 ? -5 : s == 9 ? 5 : 0);
  for (std::uint64_t s = 20; s < 40; ++s) column.add(1, s == 23 ? 5 : s == 29 ? -5 : 0);
  EXPECT_EQ(column.rows(), (std::vector<double>{-5, 5, -5, 5}));
}

TEST(Column, ABucketOfNanIsAGapAndOneValueIsNot) {
  const StepAxis axis(counting(40), 2);
  Column column(axis);
  column.add(0, kNan);
  column.add(0, std::numeric_limits<double>::infinity());
  EXPECT_EQ(count_nan(column.rows()), 4U);
  column.add(1, 2);
  EXPECT_EQ(column.rows()[2], 2);
  EXPECT_EQ(column.rows()[3], 2);
}

}  // namespace
}  // namespace presum::report
