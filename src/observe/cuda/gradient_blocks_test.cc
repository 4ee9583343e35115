// SPDX-License-Identifier: Apache-2.0
#include "observe/cuda/gradient_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "observe/cuda/testing.h"
#include "observe/gradient_pass.h"
#include "observe/testing.h"

namespace presum::observe::cuda {
namespace {

constexpr std::uint64_t kSeed = 0x5EED;
constexpr std::size_t kCounts[] = {0,    1,    2,    3,    63,   64,   65,   127,   255,  1023,
                                   1024, 1025, 2047, 2049, 4095, 4097, 8191, 12289, 50001};

// Bits of a whole number below 64, exact in every dtype.
std::uint64_t whole_bits(Dtype dtype, int number) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(number));
  switch (dtype) {
    case Dtype::kF64:
      return std::bit_cast<std::uint64_t>(static_cast<double>(number));
    case Dtype::kF32:
      return bits;
    case Dtype::kBF16:
      return bits >> 16;
    case Dtype::kF16:
      return number == 0 ? 0 : ((bits >> 16) & 0x8000) | (((bits & 0x7FFFFFFF) >> 13) - 0x1C000);
  }
  return 0;
}

// Sums of such numbers are exact, so that the order of additions does not show.
Buffer whole_numbers(Dtype dtype, std::size_t count, std::size_t offset = 0) {
  Buffer buffer(dtype, count, offset);
  std::mt19937_64 random(count);
  for (std::size_t i = 0; i < count; ++i) {
    buffer.set_bits(i, whole_bits(dtype, static_cast<int>(random() % 97) - 40));
  }
  return buffer;
}

void expect_equal_stats(const GradientSums& got, const GradientSums& wanted) {
  if (std::isfinite(wanted.sum_squares)) {
    EXPECT_NEAR(got.sum_squares, wanted.sum_squares, 1e-12 * wanted.sum_squares);
  } else {
    EXPECT_TRUE(same_bits(std::fabs(got.sum_squares), std::fabs(wanted.sum_squares)));
  }
  EXPECT_TRUE(same_bits(got.max_abs, wanted.max_abs));
  EXPECT_EQ(got.nonfinite, wanted.nonfinite);
  EXPECT_EQ(got.fingerprint, wanted.fingerprint);
  EXPECT_EQ(got.zeros, wanted.zeros);
}

void expect_equal_to_reference(const Buffer& buffer, std::uint32_t size) {
  SCOPED_TRACE("count " + std::to_string(buffer.count()) + ", sketch " + std::to_string(size));
  std::vector<float> wanted_sketch(size, 0.25F);
  std::vector<float> sketch = wanted_sketch;
  const GradientSums wanted = gradient_pass_reference(buffer.data(), buffer.count(), buffer.dtype(),
                                                      {wanted_sketch.data(), size, kSeed});
  const GradientSums got =
      emulate(buffer.data(), buffer.count(), buffer.dtype(), {sketch.data(), size, kSeed});
  expect_equal_stats(got, wanted);
  EXPECT_EQ(sketch, wanted_sketch);
}

class CudaBlocksTest : public testing::TestWithParam<Dtype> {};

TEST_P(CudaBlocksTest, WholeNumbersGiveTheBitsOfTheReference) {
  for (const std::size_t count : kCounts) {
    for (const std::uint32_t size : {0U, 64U, 128U, 512U, 1024U, 2048U, 4096U}) {
      expect_equal_to_reference(whole_numbers(GetParam(), count), size);
    }
  }
}

TEST_P(CudaBlocksTest, ALargeSketchLiesOutsideSharedMemory) {
  for (const std::uint32_t size : {8192U, 16384U, 32768U, 65536U}) {
    expect_equal_to_reference(whole_numbers(GetParam(), 150'001), size);
  }
}

TEST_P(CudaBlocksTest, BlocksTakeSeveralTiles) {
  const Buffer buffer = whole_numbers(GetParam(), (std::size_t{1} << 22) + 70'001);
  for (const std::uint32_t size : {0U, 4096U}) {
    EXPECT_GE(plan_of(buffer.count(), size).tiles, 4 * plan_of(buffer.count(), size).blocks);
    expect_equal_to_reference(buffer, size);
  }
}

TEST_P(CudaBlocksTest, AnyFiniteBitsGiveTheStatsOfTheReference) {
  for (const std::size_t count : kCounts) {
    const Buffer buffer = finite_buffer(GetParam(), count);
    expect_equal_stats(emulate(buffer.data(), count, GetParam(), {}),
                       gradient_pass_reference(buffer.data(), count, GetParam(), {}));
  }
}

TEST_P(CudaBlocksTest, AStartBetweenPairsIsRead) {
  const std::size_t element = element_bytes(GetParam());
  expect_equal_to_reference(whole_numbers(GetParam(), 5003, element), 1024);
  const Buffer buffer = finite_buffer(GetParam(), 5003, element);
  EXPECT_FALSE(gradient_of(buffer.data(), 5003, GetParam()).pairs_aligned);
  expect_equal_stats(emulate(buffer.data(), 5003, GetParam(), {}),
                     gradient_pass_reference(buffer.data(), 5003, GetParam(), {}));
}

TEST_P(CudaBlocksTest, NonFiniteElementsAreCountedAndLeftOutOfTheMaximum) {
  Buffer buffer = whole_numbers(GetParam(), 3000);
  buffer.set_bits(3, infinity_bits(GetParam()));
  buffer.set_bits(2999, infinity_bits(GetParam()) | sign_bit(GetParam()));
  buffer.set_bits(1500, largest_bits(GetParam()) | sign_bit(GetParam()));
  GradientSums stats = emulate(buffer.data(), 3000, GetParam(), {});
  EXPECT_EQ(stats.sum_squares, std::numeric_limits<double>::infinity());
  EXPECT_EQ(stats.nonfinite, 2);
  expect_equal_stats(stats, gradient_pass_reference(buffer.data(), 3000, GetParam(), {}));
  buffer.set_bits(50, nan_bits(GetParam()) | sign_bit(GetParam()));
  stats = emulate(buffer.data(), 3000, GetParam(), {});
  EXPECT_TRUE(std::isnan(stats.sum_squares));
  EXPECT_EQ(stats.nonfinite, 3);
  EXPECT_EQ(stats.fingerprint,
            gradient_pass_reference(buffer.data(), 3000, GetParam(), {}).fingerprint);
}

TEST_P(CudaBlocksTest, ANonFiniteElementMakesItsBucketNonFinite) {
  Buffer buffer = whole_numbers(GetParam(), 2000);
  buffer.set_bits(1234, nan_bits(GetParam()));
  std::vector<float> sketch(64);
  emulate(buffer.data(), 2000, GetParam(), {sketch.data(), 64, kSeed});
  for (std::size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(std::isnan(sketch[i]), i == sketch_bucket(kSeed, 1234, 64));
  }
}

// Threads that met in a bucket between two barriers would show here.
TEST_P(CudaBlocksTest, TheOrderOfThreadsAndBlocksChangesNoBit) {
  for (const std::uint32_t size : {64U, 512U, 4096U, 16384U}) {
    const Buffer buffer = finite_buffer(GetParam(), 50'001);
    std::vector<float> forward(size), backward(size);
    const GradientSums a =
        emulate(buffer.data(), 50'001, GetParam(), {forward.data(), size, kSeed}, Order::kForward);
    const GradientSums b = emulate(buffer.data(), 50'001, GetParam(),
                                   {backward.data(), size, kSeed}, Order::kBackward);
    EXPECT_TRUE(same_bits(a.sum_squares, b.sum_squares));
    EXPECT_EQ(a.fingerprint, b.fingerprint);
    EXPECT_TRUE(std::equal(forward.begin(), forward.end(), backward.begin(), same_or_both_nan));
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaBlocksTest, testing::ValuesIn(kDtypes),
                         [](const auto& test) { return dtype_name(test.param); });

TEST(CudaBlocksTest, EveryHalfIsWidenedAsInTheReference) {
  constexpr std::uint32_t kHalves = 65536;
  Buffer buffer(Dtype::kF16, kHalves);
  for (std::size_t i = 0; i < kHalves; ++i) buffer.set_bits(i, i);
  std::vector<float> wanted(kHalves), got(kHalves);  // a bucket each
  gradient_pass_reference(buffer.data(), kHalves, Dtype::kF16, {wanted.data(), kHalves, kSeed});
  emulate(buffer.data(), kHalves, Dtype::kF16, {got.data(), kHalves, kSeed});
  EXPECT_TRUE(std::equal(got.begin(), got.end(), wanted.begin(), same_or_both_nan));
}

TEST(CudaBlocksTest, RealGradientsKeepTheStatedTolerances) {
  constexpr std::size_t kCount = 3'000'001;
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> gradient(kCount);
  for (float& g : gradient) g = 1e-3F * normal(random);
  std::vector<float> wanted(4096), got(4096);
  const GradientSums expected =
      gradient_pass_reference(gradient.data(), kCount, Dtype::kF32, {wanted.data(), 4096, kSeed});
  expect_equal_stats(emulate(gradient.data(), kCount, Dtype::kF32, {got.data(), 4096, kSeed}),
                     expected);
  const float largest = std::fabs(*std::max_element(
      wanted.begin(), wanted.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
  for (std::size_t i = 0; i < 4096; ++i) EXPECT_NEAR(got[i], wanted[i], 1e-5F * largest);
}

TEST(CudaBlocksTest, AnOverflowOfDoubleIsInfiniteWithoutNonFiniteElements) {
  const double gradient[] = {1e200, -1e200, 3};
  const GradientSums stats = emulate(gradient, 3, Dtype::kF64, {});
  EXPECT_EQ(stats.sum_squares, std::numeric_limits<double>::infinity());
  EXPECT_EQ(stats.nonfinite, 0);
  EXPECT_EQ(stats.max_abs, 1e200);
}

TEST(CudaPlanTest, MemoryIsBoundedAndEveryBlockHasATile) {
  for (std::uint32_t size = 32; size <= 65536; size *= 2) {
    for (const std::uint64_t count : {0ULL, 1ULL, 1024ULL, 1025ULL, 1ULL << 22, 1ULL << 44}) {
      const Plan plan = plan_of(count, size == 32 ? 0 : size);
      EXPECT_EQ(plan.tiles, (count + 1023) / 1024);
      EXPECT_EQ(plan.blocks == 0, count == 0);
      EXPECT_LE(plan.blocks, plan.tiles);
      EXPECT_LE(plan.workspace_bytes(), (16U << 20) + (40U << 10));
      EXPECT_LE(plan.shared_bytes(), 32768);
    }
  }
}

}  // namespace
}  // namespace presum::observe::cuda
