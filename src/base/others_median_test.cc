// SPDX-License-Identifier: Apache-2.0
#include "base/others_median.h"

#include <gtest/gtest.h>

#include <random>

namespace presum::base {
namespace {

double literal(std::vector<double> values, std::size_t at) {
  values.erase(values.begin() + static_cast<std::ptrdiff_t>(at));
  std::ranges::sort(values);
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

TEST(OthersMedian, IsTheMedianWithoutTheValue) {
  std::mt19937 random(1);
  for (std::size_t n = 2; n < 12; ++n) {
    for (int round = 0; round < 50; ++round) {
      std::vector<double> values(n);
      for (double& x : values) x = static_cast<double>(random() % 6);  // with ties
      const OthersMedian others(values);
      for (std::size_t i = 0; i < n; ++i) EXPECT_EQ(others.of(values[i]), literal(values, i));
    }
  }
}

}  // namespace
}  // namespace presum::base
