// SPDX-License-Identifier: Apache-2.0
#include "base/step_span.h"

#include <gtest/gtest.h>

#include <initializer_list>

namespace presum::base {
namespace {

std::uint64_t lost(std::initializer_list<std::uint64_t> steps) {
  StepSpan span;
  for (const std::uint64_t step : steps) span.add(step);
  return span.lost();
}

TEST(StepSpan, CountsWhatIsMissingBetweenTheFirstAndTheLast) {
  EXPECT_EQ(lost({}), 0U);
  EXPECT_EQ(lost({7}), 0U);
  EXPECT_EQ(lost({0, 1, 2}), 0U);
  EXPECT_EQ(lost({5, 6, 9}), 2U);
}

TEST(StepSpan, TakesAnyNumbers) {
  EXPECT_EQ(lost({3, 3, 3}), 0U);
  EXPECT_EQ(lost({5, 4, 6}), 0U);
  EXPECT_EQ(lost({0, ~std::uint64_t{0}}), 0U);
  EXPECT_EQ(lost({0, 1, ~std::uint64_t{0}}), ~std::uint64_t{0} - 2);
}

TEST(StepSpan, KnowsThatOnlyEveryNthStepIsRecorded) {
  EXPECT_EQ(lost({0, 10, 20}), 0U);
  EXPECT_EQ(lost({0, 10, 40}), 2U);
}

TEST(StepSpan, CountsStepsThatAreNotWholeButTheLastFew) {
  StepSpan span;
  for (std::uint64_t step = 0; step < 5; ++step) span.add(step, false);
  EXPECT_EQ(span.lost(), 0U);
  span.add(5);
  EXPECT_EQ(span.lost(), 5U) << "they are not the last any more";
  for (std::uint64_t step = 6; step < 12; ++step) span.add(step, false);
  EXPECT_EQ(span.lost(), 11U);
}

}  // namespace
}  // namespace presum::base
