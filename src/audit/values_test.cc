// SPDX-License-Identifier: Apache-2.0
#include "audit/values.h"

#include <gtest/gtest.h>

#include <array>

namespace presum::audit {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

float value_of(std::uint16_t bits, Dtype dtype) {
  std::array<float, 1> out{};
  unpack<float>(&bits, 0, dtype, out);
  return out[0];
}

// The nearest value of a 16-bit format, found by comparing all values; ties to the even one.
float nearest(float x, Dtype dtype) {
  const std::uint16_t infinity = dtype == Dtype::kF16 ? 0x7C00 : 0x7F80;
  // Above the largest value the spacing continues, up to where infinity would be.
  const double beyond = dtype == Dtype::kF16 ? 65536 : 0x1p128;
  std::uint16_t best = 0;
  double distance = std::abs(static_cast<double>(x));
  for (std::uint16_t bits = 1; bits <= infinity; ++bits) {
    const double v = bits == infinity ? beyond : value_of(bits, dtype);
    const double d = std::abs(v - std::abs(static_cast<double>(x)));
    if (d < distance || (d == distance && bits % 2 == 0)) {
      best = bits;
      distance = d;
    }
  }
  return std::copysign(value_of(best, dtype), x);
}

class Formats : public testing::TestWithParam<Dtype> {
 protected:
  float round(float x) const {
    float out = 0;
    with_rounding<float>(GetParam(), [&](auto rounding) { out = rounding(x); });
    return out;
  }
};

TEST_P(Formats, RoundToTheNearestOfAllValues) {
  std::uint32_t state = 7;
  for (int i = 0; i < 200; ++i) {
    state = state * 1664525 + 1013904223;
    float x = std::bit_cast<float>(state);
    if (GetParam() == Dtype::kF16) {  // where the format has values
      x = std::ldexp(1 + static_cast<float>(state % 8191) / 8191,
                     static_cast<int>(state % 45) - 28);
    }
    if (std::isnan(x)) continue;
    ASSERT_EQ(round(x), nearest(x, GetParam())) << x;
  }
}

TEST_P(Formats, RoundTiesToEvenAndKeepSignsInfinitiesAndNaN) {
  const float unit = GetParam() == Dtype::kF16 ? 0x1p-10F : 0x1p-7F;
  EXPECT_EQ(round(1 + unit / 2), 1.F);
  EXPECT_EQ(round(1 + 3 * unit / 2), 1 + 2 * unit);
  EXPECT_EQ(round(-1 - 3 * unit / 2), -1 - 2 * unit);
  EXPECT_EQ(round(kInf), kInf);
  EXPECT_EQ(round(-kInf), -kInf);
  EXPECT_TRUE(std::isnan(round(std::numeric_limits<float>::quiet_NaN())));
  EXPECT_TRUE(std::signbit(round(-0.F)));
}

TEST_P(Formats, EveryPatternSurvivesUnpackingAndPacking) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto pattern = static_cast<std::uint16_t>(bits);
    const float x = value_of(pattern, GetParam());
    if (std::isnan(x)) continue;
    std::uint16_t back = 0;
    pack(std::span<const float>(&x, 1), GetParam(), &back);
    ASSERT_EQ(back, pattern);
    ASSERT_EQ(round(x), x);
  }
}

TEST_P(Formats, NeighborsAreOnePlaceApart) {
  const std::uint16_t infinity = GetParam() == Dtype::kF16 ? 0x7C00 : 0x7F80;
  for (std::uint16_t bits = 0; bits < infinity; ++bits) {
    const float a = value_of(bits, GetParam());
    const float b = value_of(static_cast<std::uint16_t>(bits + 1), GetParam());
    ASSERT_EQ(place(b, GetParam()) - place(a, GetParam()), 1);
    ASSERT_EQ(place(-a, GetParam()), -place(a, GetParam()));
    if (b < kInf) {
      ASSERT_EQ(2 * half_ulp(a, GetParam()), static_cast<double>(b) - a) << a;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sixteen, Formats, testing::Values(Dtype::kBF16, Dtype::kF16));

TEST(Values, FloatAndDoubleHaveTheirPlacesToo) {
  EXPECT_EQ(place(std::nextafter(1.F, 2.F), Dtype::kF32) - place(1.F, Dtype::kF32), 1);
  EXPECT_EQ(place(std::nextafter(1.0, 0.0), Dtype::kF64) - place(1.0, Dtype::kF64), -1);
  EXPECT_EQ(place(0.0, Dtype::kF64), place(-0.0, Dtype::kF64));
  const auto least = std::numeric_limits<double>::denorm_min();
  EXPECT_EQ(place(least, Dtype::kF64) - place(-least, Dtype::kF64), 2);
}

TEST(Values, HalfAUlpIsHalfTheDistanceToTheNextValue) {
  for (const double x : {1.0, 1.5, 3e-39, 1e-45, 1e38}) {
    const auto f = static_cast<float>(x);
    EXPECT_EQ(half_ulp(f, Dtype::kF32), (static_cast<double>(std::nextafter(f, kInf)) - f) / 2);
  }
  EXPECT_EQ(half_ulp(1.0, Dtype::kF64), 0x1p-53);
  EXPECT_EQ(half_ulp(0.0, Dtype::kF32), 0x1p-150);
}

TEST(Values, NaNIsNaNAndTheSignOfAZeroDoesNotCount) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(same(nan, -nan));
  EXPECT_TRUE(same(0.F, -0.F));
  EXPECT_FALSE(same(nan, 1.F));
  EXPECT_FALSE(same(1.F, std::nextafter(1.F, 2.F)));
}

}  // namespace
}  // namespace presum::audit
