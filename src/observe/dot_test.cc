// SPDX-License-Identifier: Apache-2.0
#include "observe/dot.h"

#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <string>
#include <string_view>
#include <tuple>

#include "base/simd.h"
#include "observe/testing.h"

namespace presum::observe {
namespace {

class DotTest : public testing::TestWithParam<std::tuple<std::string_view, Dtype>> {
 protected:
  void SetUp() override { ASSERT_TRUE(base::set_simd_target(std::get<0>(GetParam()))); }
  void TearDown() override { ASSERT_TRUE(base::set_simd_target("")); }
  static Dtype dtype() { return std::get<1>(GetParam()); }
};

// Of middling size, so that no product of fp64 overflows.
Buffer middling_buffer(Dtype dtype, std::size_t count, std::size_t offset) {
  std::mt19937_64 random(count + offset);
  Buffer buffer(dtype, count, offset);
  const std::uint64_t one = exponent_mask(dtype) >> 1 & exponent_mask(dtype);
  const std::uint64_t varied = ~exponent_mask(dtype) | exponent_mask(dtype) >> 3;
  for (std::size_t i = 0; i < count; ++i) buffer.set_bits(i, one ^ (random() & varied & ~one));
  return buffer;
}

TEST_P(DotTest, IsTheReferenceBitForBit) {
  for (const std::size_t count : {0, 1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 1000, 4099}) {
    for (const std::size_t offset : {0, 1, 2, 4, 7}) {
      SCOPED_TRACE(std::to_string(count) + " elements from byte " + std::to_string(offset));
      for (const bool any : {false, true}) {
        const Buffer a =
            any ? finite_buffer(dtype(), count, offset) : middling_buffer(dtype(), count, offset);
        const Buffer b = any ? finite_buffer(dtype(), count, offset + 1)
                             : middling_buffer(dtype(), count, offset + 1);
        const double wanted = dot_reference(a.data(), b.data(), count, dtype());
        const double got = dot(a.data(), b.data(), count, dtype());
        EXPECT_TRUE(same_bits(got, wanted) || (std::isnan(got) && std::isnan(wanted)))
            << got << " instead of " << wanted;
      }
    }
  }
}

TEST_P(DotTest, OfTheSameBufferIsItsSumOfSquares) {
  Buffer ones(dtype(), 100);
  const int mantissa = format_of(dtype()).mantissa_bits;
  const std::uint64_t bias = (std::uint64_t{1} << (format_of(dtype()).exponent_bits - 1)) - 1;
  for (std::size_t i = 0; i < 100; ++i) ones.set_bits(i, (bias + 1) << mantissa);  // 2.0
  EXPECT_EQ(dot(ones.data(), ones.data(), 100, dtype()), 400.0);
}

TEST_P(DotTest, ANonfiniteElementShows) {
  for (const std::size_t at : {0, 63, 64, 99}) {
    Buffer a = middling_buffer(dtype(), 100, 0);
    const Buffer b = middling_buffer(dtype(), 100, 1);
    a.set_bits(at, infinity_bits(dtype()));
    EXPECT_TRUE(std::isinf(dot(a.data(), b.data(), 100, dtype())));
    a.set_bits(at, nan_bits(dtype()));
    EXPECT_TRUE(std::isnan(dot(a.data(), b.data(), 100, dtype())));
  }
}

TEST_P(DotTest, TheCallersRoundingDoesNotMatter) {
  const Buffer a = middling_buffer(dtype(), 1000, 0);
  const Buffer b = middling_buffer(dtype(), 1000, 1);
  const double wanted = dot(a.data(), b.data(), 1000, dtype());
  std::fesetround(FE_UPWARD);
  const double got = dot(a.data(), b.data(), 1000, dtype());
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
  std::fesetround(FE_TONEAREST);
  EXPECT_TRUE(same_bits(got, wanted));
}

INSTANTIATE_TEST_SUITE_P(Targets, DotTest,
                         testing::Combine(testing::ValuesIn(base::simd_targets()),
                                          testing::ValuesIn(kDtypes)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) +
                                  dtype_name(std::get<1>(test.param));
                         });

}  // namespace
}  // namespace presum::observe
