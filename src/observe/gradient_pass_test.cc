// SPDX-License-Identifier: Apache-2.0
#include "observe/gradient_pass.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/float_environment.h"
#include "base/hash.h"
#include "base/simd.h"
#include "observe/testing.h"

namespace presum::observe {
namespace {

constexpr std::uint64_t kSeed = 0x5EED;

// Sketches with initial values, to detect a lost addition or a lost sign of zero.
std::vector<float> used_sketch(std::uint32_t size) {
  std::vector<float> values(size);
  for (std::size_t i = 0; i < size; ++i)
    values[i] = i % 3 == 0 ? -0.0F : 0.25F * static_cast<float>(i);
  return values;
}

void expect_equal_to_reference(const Buffer& buffer, std::uint32_t sketch_size) {
  SCOPED_TRACE("count " + std::to_string(buffer.count()) + ", sketch " +
               std::to_string(sketch_size));
  std::vector<float> wanted_sketch = used_sketch(sketch_size);
  std::vector<float> sketch = wanted_sketch;
  const GradientSums wanted = gradient_pass_reference(buffer.data(), buffer.count(), buffer.dtype(),
                                                      {wanted_sketch.data(), sketch_size, kSeed});
  const GradientSums got = gradient_pass(buffer.data(), buffer.count(), buffer.dtype(),
                                         {sketch.data(), sketch_size, kSeed});
  EXPECT_TRUE(same_bits(got.sum_squares, wanted.sum_squares))
      << got.sum_squares << " instead of " << wanted.sum_squares;
  EXPECT_EQ(got.max_abs, wanted.max_abs);
  EXPECT_EQ(got.nonfinite, wanted.nonfinite);
  EXPECT_EQ(got.fingerprint, wanted.fingerprint);
  EXPECT_EQ(got.zeros, wanted.zeros);
  EXPECT_TRUE(std::equal(sketch.begin(), sketch.end(), wanted_sketch.begin(), same_or_both_nan));
}

// Every supported target with every dtype, against the reference.
class KernelTest : public testing::TestWithParam<std::tuple<std::string_view, Dtype>> {
 protected:
  void SetUp() override { ASSERT_TRUE(base::set_simd_target(std::get<0>(GetParam()))); }
  void TearDown() override { ASSERT_TRUE(base::set_simd_target("")); }
  static Dtype dtype() { return std::get<1>(GetParam()); }
};

TEST_P(KernelTest, ShortBuffersEqualTheReference) {
  for (std::size_t count = 0; count <= 130; ++count) {
    for (const std::uint32_t size : {0U, 64U, 256U}) {
      expect_equal_to_reference(finite_buffer(dtype(), count), size);
    }
  }
}

TEST_P(KernelTest, ZerosOfBothSignsAreCountedAndPaddingIsNot) {
  const int width = 8 * static_cast<int>(element_bytes(dtype()));
  for (const std::size_t count : {1, 63, 64, 65, 128, 960, 970, 1023, 1025, 5000}) {
    Buffer buffer = finite_buffer(dtype(), count);
    std::uint64_t zeros = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t bits[] = {0, std::uint64_t{1} << (width - 1), 1};  // 0, -0, a denormal
      buffer.set_bits(i, bits[(i * i + i / 7) % 3]);
      zeros += i % 960 < 64 && (i * i + i / 7) % 3 < 2;
    }
    EXPECT_EQ(gradient_pass(buffer.data(), count, dtype(), {}).zeros, zeros) << count;
    expect_equal_to_reference(buffer, 64);
  }
}

TEST_P(KernelTest, LengthsAroundFingerprintBlocksEqualTheReference) {
  for (const std::size_t count : {1009, 1023, 1024, 1025, 2047, 2048, 2049, 3067, 7919, 10007}) {
    for (const std::uint32_t size : {0U, 64U, 256U, 4096U}) {
      expect_equal_to_reference(finite_buffer(dtype(), count), size);
    }
  }
}

TEST_P(KernelTest, LengthsAroundSketchBlocksEqualTheReference) {
  for (const std::uint32_t size : {64U, 256U, 4096U, 65536U}) {
    for (const std::size_t count : {size - 1, size, size + 1, 3 * size + 17}) {
      if (count < 70000) expect_equal_to_reference(finite_buffer(dtype(), count), size);
    }
  }
}

TEST_P(KernelTest, MisalignedBuffersEqualTheReference) {
  for (const std::size_t offset : {1, 2, 3, 4, 5, 7, 8, 13, 31, 33, 63}) {
    for (const std::size_t count : {5, 64, 1100, 5003}) {
      expect_equal_to_reference(finite_buffer(dtype(), count, offset), 256);
    }
  }
}

TEST_P(KernelTest, NonFiniteElementsAnywhereEqualTheReference) {
  for (const std::size_t count : {1, 63, 64, 67, 1030, 2111}) {
    for (const std::size_t at : {std::size_t{0}, count / 3, count / 2, count - 1}) {
      for (const std::uint64_t bits : {nan_bits(dtype()), infinity_bits(dtype())}) {
        Buffer buffer = finite_buffer(dtype(), count);
        buffer.set_bits(at, bits | sign_bit(dtype()));
        expect_equal_to_reference(buffer, 64);
        buffer.set_bits(0, infinity_bits(dtype()));
        expect_equal_to_reference(buffer, 64);
      }
    }
  }
}

TEST_P(KernelTest, NonFiniteElementsAreCountedAndLeftOutOfTheMaximum) {
  Buffer buffer(dtype(), 200);
  buffer.set_bits(3, infinity_bits(dtype()));
  buffer.set_bits(199, infinity_bits(dtype()) | sign_bit(dtype()));
  buffer.set_bits(100, largest_bits(dtype()) | sign_bit(dtype()));
  GradientSums stats = gradient_pass(buffer.data(), buffer.count(), dtype(), {});
  EXPECT_EQ(stats.sum_squares, std::numeric_limits<double>::infinity());
  EXPECT_EQ(stats.nonfinite, 2);
  const double largest = stats.max_abs;
  buffer.set_bits(50, nan_bits(dtype()));
  stats = gradient_pass(buffer.data(), buffer.count(), dtype(), {});
  EXPECT_TRUE(std::isnan(stats.sum_squares));
  EXPECT_EQ(stats.nonfinite, 3);
  EXPECT_EQ(stats.max_abs, largest);
  EXPECT_TRUE(std::isfinite(largest) && largest > 65000);
}

TEST_P(KernelTest, TheMaximumIsFoundAtEveryPlace) {
  for (std::size_t at = 0; at < 131; ++at) {
    Buffer buffer(dtype(), 131);
    buffer.set_bits(at, largest_bits(dtype()) | sign_bit(dtype()));
    expect_equal_to_reference(buffer, 0);
    EXPECT_GT(gradient_pass(buffer.data(), 131, dtype(), {}).max_abs, 65000);
  }
}

TEST_P(KernelTest, SignedZerosGiveAPositiveZeroMaximumAndNoSum) {
  Buffer buffer(dtype(), 100);
  for (std::size_t i = 0; i < 100; i += 2) buffer.set_bits(i, sign_bit(dtype()));
  expect_equal_to_reference(buffer, 64);
  const GradientSums stats = gradient_pass(buffer.data(), 100, dtype(), {});
  EXPECT_TRUE(same_bits(stats.max_abs, 0.0));
  EXPECT_TRUE(same_bits(stats.sum_squares, 0.0));
}

TEST_P(KernelTest, DenormalsCount) {
  Buffer buffer(dtype(), 77);
  for (std::size_t i = 0; i < 77; ++i) buffer.set_bits(i, 1 + i % 5);
  expect_equal_to_reference(buffer, 64);
  EXPECT_GT(gradient_pass(buffer.data(), 77, dtype(), {}).max_abs, 0);
}

#if defined(__SSE2__)
TEST_P(KernelTest, TheCallersFloatingPointModeNeitherMattersNorChanges) {
  Buffer buffer = finite_buffer(dtype(), 300);
  const GradientSums wanted = gradient_pass(buffer.data(), 300, dtype(), {});
  const unsigned before = _mm_getcsr();
  const unsigned flush_and_round_up = 0x8040 | _MM_ROUND_UP | _MM_MASK_MASK;
  _mm_setcsr(flush_and_round_up);
  const GradientSums stats = gradient_pass(buffer.data(), 300, dtype(), {});
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(after, flush_and_round_up);
  EXPECT_TRUE(same_bits(stats.sum_squares, wanted.sum_squares));
}
#endif

INSTANTIATE_TEST_SUITE_P(Targets, KernelTest,
                         testing::Combine(testing::ValuesIn(base::simd_targets()),
                                          testing::ValuesIn(kDtypes)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) + "_" +
                                  name_of(std::get<1>(test.param));
                         });

// Compares the reference with code that shares nothing with it.

TEST(GradientPassReferenceTest, TheSumOfSquaresIsThatOfLongDouble) {
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> gradient(5001);
  for (float& g : gradient) g = normal(random);
  long double sum = 0;
  float largest = 0;
  for (const float g : gradient) {
    sum += static_cast<long double>(g) * g;
    largest = std::max(largest, std::fabs(g));
  }
  const GradientSums stats =
      gradient_pass_reference(gradient.data(), gradient.size(), Dtype::kF32, {});
  EXPECT_NEAR(stats.sum_squares, static_cast<double>(sum), 1e-11);
  EXPECT_EQ(stats.max_abs, largest);
}

TEST(GradientPassReferenceTest, SixteenBitTypesAreWidenedExactly) {
  const std::uint16_t halves[] = {0x3C00, 0xC100, 0x0001, 0x7BFF, 0x0400};
  const double half_values[] = {1, -2.5, 0x1p-24, 65504, 0x1p-14};
  const std::uint16_t bfloats[] = {0x3F80, 0xC020, 0x0001, 0x7F7F, 0x0080};
  const double bfloat_values[] = {1, -2.5, 0x1p-133, 0x1.FEp127, 0x1p-126};
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(gradient_pass_reference(&halves[i], 1, Dtype::kF16, {}).max_abs,
              std::fabs(half_values[i]));
    EXPECT_EQ(gradient_pass_reference(&bfloats[i], 1, Dtype::kBF16, {}).max_abs,
              std::fabs(bfloat_values[i]));
  }
}

TEST(GradientPassReferenceTest, AnOverflowOfDoubleIsInfiniteWithoutNonFiniteElements) {
  const double gradient[] = {1e200, -1e200, 3};
  for (const GradientSums& stats : {gradient_pass_reference(gradient, 3, Dtype::kF64, {}),
                                    gradient_pass(gradient, 3, Dtype::kF64, {})}) {
    EXPECT_EQ(stats.sum_squares, std::numeric_limits<double>::infinity());
    EXPECT_EQ(stats.nonfinite, 0);
    EXPECT_EQ(stats.max_abs, 1e200);
  }
}

TEST(GradientPassReferenceTest, TheSketchKeepsTheSumOfSquaresOfOneBlock) {
  const Buffer buffer = finite_buffer(Dtype::kF16, 64);
  std::vector<float> sketch(64);
  const GradientSums stats =
      gradient_pass_reference(buffer.data(), 64, Dtype::kF16, {sketch.data(), 64, kSeed});
  const double energy = std::inner_product(sketch.begin(), sketch.end(), sketch.begin(), 0.0,
                                           std::plus<>(), [](double a, double b) { return a * b; });
  EXPECT_DOUBLE_EQ(energy, stats.sum_squares);
}

// Fingerprints: the vectors of tests/data/hash_vectors.json.

std::uint64_t fingerprint_of(const void* data, std::size_t count, Dtype dtype) {
  const std::uint64_t wanted = gradient_pass_reference(data, count, dtype, {}).fingerprint;
  EXPECT_EQ(gradient_pass(data, count, dtype, {}).fingerprint, wanted);
  return wanted;
}

TEST(SketchTest, PartsInTheirOrderMakeTheWhole) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF64, Dtype::kBF16, Dtype::kF16}) {
    const Buffer buffer = finite_buffer(dtype, 5000);
    std::vector<float> whole = used_sketch(256);
    std::vector<float> parts = whole;
    gradient_pass(buffer.data(), buffer.count(), dtype, {whole.data(), 256, kSeed});
    const auto* bytes = static_cast<const char*>(static_cast<const void*>(buffer.data()));
    std::size_t first = 0;
    for (const std::size_t count : {0, 1, 62, 65, 128, 0, 1000, 3744}) {
      sketch_part(bytes + first * element_bytes(dtype), count, dtype, first,
                  {parts.data(), 256, kSeed});
      first += count;
    }
    ASSERT_EQ(first, buffer.count());
    EXPECT_TRUE(std::equal(whole.begin(), whole.end(), parts.begin(), same_or_both_nan));
  }
}

TEST(FingerprintTest, TestVectors) {
  const float f32[] = {1.0F, -2.5F};
  const double f64[] = {1.0, -2.5, 1e300};
  const std::uint16_t bf16[] = {0x3F80, 0xC020, 0x0001};  // 1, -2.5, 2^-133
  const std::uint16_t f16[] = {0x3C00, 0xC100, 0x0001};   // 1, -2.5, 2^-24
  std::vector<float> ramp(1025);
  for (std::size_t i = 0; i < ramp.size(); ++i) ramp[i] = 0.5F * static_cast<float>(i);
  EXPECT_EQ(fingerprint_of(nullptr, 0, Dtype::kF32), 0);
  EXPECT_EQ(fingerprint_of(f32, 2, Dtype::kF32), 0xB83CB54C21EB95B5ULL);
  EXPECT_EQ(fingerprint_of(ramp.data(), ramp.size(), Dtype::kF32), 0x5A5E6C44D3CF998CULL);
  EXPECT_EQ(fingerprint_of(f64, 3, Dtype::kF64), 0x66C7068F1DF962B2ULL);
  EXPECT_EQ(fingerprint_of(bf16, 3, Dtype::kBF16), 0xB7A371D91C30C88AULL);
  EXPECT_EQ(fingerprint_of(f16, 3, Dtype::kF16), 0x96CC7D209E982306ULL);
}

TEST(FingerprintTest, EverySingleBitMatters) {
  for (const Dtype dtype : kDtypes) {
    Buffer buffer = finite_buffer(dtype, 1030);
    const std::uint64_t original = fingerprint_of(buffer.data(), 1030, dtype);
    const std::size_t width = 8 * element_bytes(dtype);
    for (std::size_t bit = 0; bit < 1030 * width; bit += 13) {
      const std::uint64_t before = buffer.bits(bit / width);
      buffer.set_bits(bit / width, before ^ (std::uint64_t{1} << bit % width));
      EXPECT_NE(gradient_pass(buffer.data(), 1030, dtype, {}).fingerprint, original);
      buffer.set_bits(bit / width, before);
    }
  }
}

TEST(FingerprintTest, OrderAndLengthMatter) {
  std::vector<float> gradient(2048);
  std::iota(gradient.begin(), gradient.end(), 1.0F);
  const std::uint64_t original = fingerprint_of(gradient.data(), 2048, Dtype::kF32);
  for (const auto& [a, b] :
       {std::pair(0, 1), std::pair(0, 2), std::pair(0, 1024), std::pair(7, 2047)}) {
    std::swap(gradient[static_cast<std::size_t>(a)], gradient[static_cast<std::size_t>(b)]);
    EXPECT_NE(fingerprint_of(gradient.data(), 2048, Dtype::kF32), original);
    std::swap(gradient[static_cast<std::size_t>(a)], gradient[static_cast<std::size_t>(b)]);
  }
  const std::vector<float> zeros(3000);
  EXPECT_NE(fingerprint_of(zeros.data(), 2999, Dtype::kF32),
            fingerprint_of(zeros.data(), 3000, Dtype::kF32));
}

}  // namespace
}  // namespace presum::observe
