// SPDX-License-Identifier: Apache-2.0
#include "observe/value_sample.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

namespace presum::observe {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
using Values = std::vector<double>;

TEST(ValueSample, ElementsAtEqualDistancesOfEachBuffer) {
  std::vector<float> floats(1000);
  std::iota(floats.begin(), floats.end(), 0.0F);
  const Values doubles = {0.5, -2};
  const std::array<std::uint16_t, 3> brain = {0x3f80, 0xc000, 0x7f80};  // 1, -2, infinity
  const std::array<std::uint16_t, 1> half = {0x3c00};
  const std::array buffers = {Buffer{floats.data(), floats.size(), Dtype::kF32},
                              Buffer{doubles.data(), doubles.size(), Dtype::kF64},
                              Buffer{brain.data(), brain.size(), Dtype::kBF16},
                              Buffer{half.data(), half.size(), Dtype::kF16},
                              Buffer{nullptr, 0, Dtype::kF32}};
  EXPECT_EQ(value_sample(buffers, 4), (Values{0, 250, 500, 750, 0.5, -2, 1, -2, kInf, 1}));
  EXPECT_TRUE(value_sample({}, 4).empty());
  EXPECT_TRUE(value_sample(buffers, 0).empty());
}

TEST(ValueSample, WhatMultipliedIt) {
  const Values before = {1, -2, 3, 0.1};
  EXPECT_EQ(value_factor(before, before), 1.0);
  for (const double factor : {0.0, 0.25, 2.0, 1e-6}) {
    Values now = before;
    for (double& x : now) x *= factor;
    EXPECT_NEAR(value_factor(before, now).value(), factor, 1e-12 * factor);
  }
  EXPECT_TRUE(std::isnan(value_factor(before, Values{-1, 2, -3, -0.1}).value()));
  EXPECT_TRUE(std::isnan(value_factor(before, Values{1, -2, 3, 0.2}).value()));
  for (const double scale : {1e80, 1e-100, 1e140}) {
    const double factor = value_factor(Values{scale, scale}, Values{scale, 9 * scale}).value();
    EXPECT_TRUE(std::isnan(factor)) << scale;
  }
  EXPECT_NEAR(value_factor(before, Values{1.002, -1.998, 3, 0.1}).value(), 1, 1e-3);
}

TEST(ValueSample, OneOnlyWhereEveryBitIsWhatItWas) {
  const Values from_zero = {1, -2, 1e-4};
  const double factor = value_factor(Values{1, -2, 0}, from_zero).value();
  EXPECT_NE(factor, 1.0);
  EXPECT_NEAR(factor, 1, 1e-12);
  EXPECT_NE(value_factor(Values{1, 0.0}, Values{1, -0.0}), 1.0);
}

TEST(ValueSample, WhatIsNotKnown) {
  EXPECT_EQ(value_factor(Values{0, 0}, Values{1, 1}), std::nullopt);
  EXPECT_EQ(value_factor(Values{0, 0}, Values{0, 0}), 1.0);
  EXPECT_EQ(value_factor(Values{1, 1}, Values{1}), std::nullopt);
  EXPECT_EQ(value_factor(Values{1, kNaN}, Values{1, kNaN}), 1.0) << "every bit is what it was";
  EXPECT_EQ(value_factor(Values{1, kNaN}, Values{2, kNaN}), std::nullopt);
  EXPECT_EQ(value_factor(Values{1, 1}, Values{kInf, 1}), std::nullopt);
  EXPECT_EQ(value_factor(Values{1e300, 1}, Values{2e300, 1}), std::nullopt) << "squares overflow";
}

}  // namespace
}  // namespace presum::observe
