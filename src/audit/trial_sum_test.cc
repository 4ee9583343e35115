// SPDX-License-Identifier: Apache-2.0
#include "audit/trial_sum.h"

#include <gtest/gtest.h>

#include <vector>

namespace presum::audit {
namespace {

constexpr Scheme kF32{Dtype::kF32, Dtype::kF32};

// One element of each rank.
Rows<float> rows_of(const std::vector<float>& values) {
  Rows<float> rows(values.size());
  rows.count = 1;
  for (std::size_t w = 0; w < values.size(); ++w) rows[w][0] = values[w];
  return rows;
}

TEST(TrialSum, DependsOnWhereARingBegins) {
  TrialSum<float> sum(3, 1);
  sum.prepare(rows_of({1e8F, 1, -1e8F}), Dtype::kF32, Division::kNone);
  sum.add(kF32, SumOrder::kRing, 0);
  EXPECT_EQ(sum.divided(Division::kNone, Dtype::kF32)[0], 0) << "the 1 is lost";
  sum.add(kF32, SumOrder::kRing, 2);
  EXPECT_EQ(sum.divided(Division::kNone, Dtype::kF32)[0], 1);
  sum.add_exactly(Dtype::kF32, 1);
  EXPECT_EQ(sum.divided(Division::kNone, Dtype::kF32)[0], 1);
}

TEST(TrialSum, DividesBeforeOrAfter) {
  TrialSum<float> sum(2, 3);
  const auto rows = rows_of({1, 1});
  sum.prepare(rows, Dtype::kF32, Division::kBeforeDivide);
  EXPECT_EQ(sum.prepared()[0][0], 1.F / 3);
  sum.prepare(rows, Dtype::kF32, Division::kNone);
  sum.add(kF32, SumOrder::kSequential, 0);
  EXPECT_EQ(sum.divided(Division::kNone, Dtype::kF32)[0], 2);
  EXPECT_EQ(sum.divided(Division::kAfterDivide, Dtype::kF32)[0], 2.F / 3);
  EXPECT_EQ(sum.divided(Division::kAfterMultiply, Dtype::kF32)[0], 2 * (1.F / 3));
  sum.add_exactly(Dtype::kF32, 3);
  EXPECT_EQ(sum.divided(Division::kOnce, Dtype::kF32)[0], 2.F / 3);
}

TEST(TrialSum, RoundsToTheFormatOfTheWire) {
  TrialSum<float> sum(2, 1);
  sum.prepare(rows_of({1, 0x1p-9F}), Dtype::kBF16, Division::kNone);
  sum.add({Dtype::kBF16, Dtype::kF32}, SumOrder::kSequential, 0);
  EXPECT_EQ(sum.divided(Division::kNone, Dtype::kBF16)[0], 1);
}

}  // namespace
}  // namespace presum::audit
