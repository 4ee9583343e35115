// SPDX-License-Identifier: Apache-2.0
#include "observe/cuda/batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device/host_grid.h"
#include "observe/gradient_pass.h"
#include "observe/testing.h"

namespace presum::observe::cuda {
namespace {

using device::HostGrid;
using device::Launch;
using device::Launcher;
using device::Order;
using device::Traffic;

constexpr std::uint64_t kSeed = 0x5EED;
constexpr std::size_t kCounts[] = {0,    1,    2,    3,    63,   64,   65,   127,   255,  1023,
                                   1024, 1025, 2047, 2049, 4095, 4097, 8191, 12289, 50001};

// A batch on the host's grid. Its memory has exactly the promised size, so that the address
// sanitizer detects a write out of bounds. The buffers serve launches on one stream, one after the
// other.
class OnHost {
 public:
  explicit OnHost(std::uint32_t sketch_size, Order order = Order::kForward)
      : grid(order),
        size_(sketch_size),
        rows_(new float[GradientBatch::most_blocks(size_) * std::size_t{size_}]) {}

  void read(Dtype dtype, const std::vector<std::pair<const void*, std::size_t>>& gradients) {
    Result<GradientBatch> batch = GradientBatch::create(dtype, size_);
    ASSERT_TRUE(batch);
    for (const auto& [data, count] : gradients) {
      batch->add(data, count, kSeed);
    }
    auto partials = std::make_unique<Partial[]>(batch->partials_bytes() / sizeof(Partial));
    const std::vector<Parts> parts = batch->parts(partials.get());
    parts_.insert(parts_.end(), parts.begin(), parts.end());
    ASSERT_TRUE(batch->launch(grid, {batch->list(), partials.get(), rows_.get(), used_}, nullptr));
    used_ = std::max(used_, batch->blocks());
    memory_.push_back(std::move(partials));
  }

  std::vector<GradientSums> finish(float* sketch) {
    std::vector<Partial> found(parts_.size());
    const Sketches sketches{rows_.get(), used_};
    EXPECT_TRUE(cuda::finish(grid,
                             {parts_.data(), &sketches, found.data(), sketch,
                              static_cast<std::uint32_t>(parts_.size()), 1, size_},
                             0, nullptr));
    std::vector<GradientSums> sums;
    for (const Partial& p : found) {
      sums.push_back({p.sum_squares, p.max_abs, p.nonfinite, p.fingerprint, p.zeros});
    }
    return sums;
  }

  HostGrid grid;

 private:
  std::uint32_t size_, used_ = 0;
  std::unique_ptr<float[]> rows_;
  std::vector<Parts> parts_;
  std::vector<std::unique_ptr<Partial[]>> memory_;
};

// Processes one gradient; adds to the sketch.
GradientSums emulate(const void* data, std::size_t count, Dtype dtype, SketchSpan sketch,
                     Order order = Order::kForward) {
  OnHost host(sketch.size, order);
  host.read(dtype, {{data, count}});
  std::vector<float> found(sketch.size);
  const GradientSums sums = host.finish(found.data())[0];
  for (std::size_t i = 0; i < found.size(); ++i) sketch.values[i] += found[i];
  return sums;
}

// Whole numbers below 64: they and their sums are exact in every dtype, so the order of additions
// does not matter.
Buffer whole_numbers(Dtype dtype, std::size_t count, std::size_t offset = 0) {
  Buffer buffer(dtype, count, offset);
  std::mt19937_64 random(count);
  for (std::size_t i = 0; i < count; ++i) {
    buffer.set_bits(i, base::bits_near(static_cast<int>(random() % 97) - 40, dtype));
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

TEST_P(CudaBlocksTest, BlocksTakeSeveralSpans) {
  const Buffer buffer = whole_numbers(GetParam(), (std::size_t{1} << 22) + 70'001);
  for (const std::uint32_t size : {0U, 4096U}) expect_equal_to_reference(buffer, size);
}

// Gradients of all lengths, in batches of any size on one stream: each has the same sums as alone,
// and the sketch is the sum over all.
TEST_P(CudaBlocksTest, ManyGradientsShareALaunch) {
  for (const std::uint32_t size : {0U, 64U, 4096U, 16384U}) {
    std::vector<Buffer> buffers;
    for (const std::size_t count : kCounts) buffers.push_back(whole_numbers(GetParam(), count));
    buffers.push_back(whole_numbers(GetParam(), 700'000));
    for (const std::size_t count : kCounts) {
      buffers.push_back(whole_numbers(GetParam(), count, element_bytes(GetParam())));
    }
    for (const std::size_t batches : {1U, 2U, 5U}) {
      OnHost host(size);
      for (std::size_t b = 0; b < batches; ++b) {
        std::vector<std::pair<const void*, std::size_t>> part;
        const std::size_t end = (b + 1) * buffers.size() / batches;
        for (std::size_t i = b * buffers.size() / batches; i < end; ++i) {
          part.emplace_back(buffers[i].data(), buffers[i].count());
        }
        host.read(GetParam(), part);
      }
      std::vector<float> sketch(size), wanted(size);
      const std::vector<GradientSums> got = host.finish(sketch.data());
      ASSERT_EQ(got.size(), buffers.size());
      for (std::size_t i = 0; i < buffers.size(); ++i) {
        SCOPED_TRACE(i);
        expect_equal_stats(
            got[i], gradient_pass_reference(buffers[i].data(), buffers[i].count(), GetParam(),
                                            {wanted.data(), size, kSeed}));
      }
      EXPECT_EQ(sketch, wanted);
      EXPECT_EQ(host.grid.launched().size(), batches + 1);
    }
  }
}

TEST_P(CudaBlocksTest, AnyFiniteBitsGiveTheStatsOfTheReference) {
  for (const std::size_t count : kCounts) {
    const Buffer buffer = finite_buffer(GetParam(), count);
    expect_equal_stats(emulate(buffer.data(), count, GetParam(), {}),
                       gradient_pass_reference(buffer.data(), count, GetParam(), {}));
  }
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
  const std::size_t bucket = (1234 + sketch_rotation(kSeed, 1234 / 64, 64)) % 64;
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(std::isnan(sketch[i]), i == bucket);
}

// Threads that shared a bucket between two barriers would fail this test.
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
                         [](const auto& test) { return name_of(test.param); });

TEST(CudaBlocksTest, EveryHalfIsWidenedAsInTheReference) {
  constexpr std::uint32_t kHalves = 65536;
  Buffer buffer(Dtype::kF16, kHalves);
  for (std::size_t i = 0; i < kHalves; ++i) buffer.set_bits(i, i);
  std::vector<float> wanted(kHalves), got(kHalves);  // one bucket each
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

// The buckets that DDP passes for a model with a billion 16-bit parameters: 80 of 25 MB.
TEST(CudaBatchTest, TrafficStaysWithinATenthOfTheGradients) {
  std::uint64_t gradients = 0, other = 0;
  std::uint32_t in_use = 0;
  for (int bucket = 0; bucket < 80; ++bucket) {
    Result<GradientBatch> batch = GradientBatch::create(Dtype::kBF16, 4096);
    ASSERT_TRUE(batch);
    for (int i = 0; i < 4; ++i) batch->add(nullptr, 3'276'800, kSeed);
    class Counter final : public Launcher {
     public:
      Status start(const Launch& launch, void* /*stream*/) override {
        found = launch.traffic;
        return {};
      }
      Traffic found;
    } counter;
    ASSERT_TRUE(batch->launch(counter, {nullptr, nullptr, nullptr, in_use}, nullptr));
    in_use = std::max(in_use, batch->blocks());
    gradients += counter.found.gradient_bytes;
    other += counter.found.other_bytes;
  }
  EXPECT_LE(static_cast<double>(other), 0.1 * static_cast<double>(gradients));
}

TEST(CudaBatchTest, MemoryIsBoundedAndEveryBlockHasASpan) {
  for (std::uint32_t size = 32; size <= 65536; size *= 2) {
    const std::uint32_t sketch = size == 32 ? 0 : size;
    EXPECT_LE(std::uint64_t{GradientBatch::most_blocks(sketch)} * sketch * sizeof(float), 4U << 20);
    for (const std::uint64_t count : {0ULL, 1ULL, 4096ULL, 4097ULL, 1ULL << 22, 1ULL << 44}) {
      Result<GradientBatch> batch = GradientBatch::create(Dtype::kF32, sketch);
      ASSERT_TRUE(batch);
      batch->add(nullptr, count, kSeed);
      EXPECT_EQ(batch->blocks() == 0, count == 0);
      EXPECT_LE(batch->blocks(), (count + kSpan - 1) / kSpan);
      EXPECT_LE(batch->blocks(), GradientBatch::most_blocks(sketch));
    }
  }
}

TEST(CudaBatchTest, PartsAreThoseOfTheBlocksThatMeetAGradient) {
  Result<GradientBatch> batch = GradientBatch::create(Dtype::kF32, 64);
  ASSERT_TRUE(batch);
  for (int i = 0; i < 10'000; ++i) batch->add(nullptr, i % 7 == 0 ? 0 : 1000 * (i % 13), kSeed);
  const std::vector<Partial> partials(batch->partials_bytes() / sizeof(Partial));
  const std::vector<Parts> parts = batch->parts(partials.data());
  const Partial* after = nullptr;
  for (const Parts& one : parts) {
    if (one.count == 0) continue;
    EXPECT_GT(one.first, after);
    after = one.first + one.count - 1;
  }
  EXPECT_LT(after, partials.data() + partials.size());
}

TEST(CudaBatchTest, OtherSketchSizesAreRefused) {
  for (const std::uint32_t size : {1U, 32U, 63U, 100U, 131072U}) {
    EXPECT_FALSE(GradientBatch::create(Dtype::kF32, size));
  }
}

}  // namespace
}  // namespace presum::observe::cuda
