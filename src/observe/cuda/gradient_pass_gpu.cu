// SPDX-License-Identifier: Apache-2.0
// The kernels on a GPU, against the same grid on the host; skipped where there is no GPU.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "observe/cuda/gradient_pass.h"
#include "observe/cuda/testing.h"
#include "observe/testing.h"

namespace presum::observe::cuda {
namespace {

constexpr std::uint64_t kSeed = 0x5EED;

class GpuTest : public testing::TestWithParam<Dtype> {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no GPU";
    ASSERT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
  }
  void TearDown() override {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  void expect_the_bits_of_the_host(const Buffer& buffer, std::size_t offset, std::uint32_t size);

  cudaStream_t stream_ = nullptr;
};

struct ManagedMemory {
  explicit ManagedMemory(std::size_t bytes) {
    EXPECT_EQ(cudaMallocManaged(&memory, bytes + 1), cudaSuccess);
  }
  ~ManagedMemory() { cudaFree(memory); }
  ManagedMemory(const ManagedMemory&) = delete;
  ManagedMemory& operator=(const ManagedMemory&) = delete;
  void* memory = nullptr;
};

struct PassOutput {
  double sum_squares, max_abs;
  std::int64_t nonfinite;
  std::uint64_t fingerprint;
  std::int64_t zeros;
};

void GpuTest::expect_the_bits_of_the_host(const Buffer& buffer, std::size_t offset,
                                          std::uint32_t size) {
  SCOPED_TRACE("count " + std::to_string(buffer.count()) + ", sketch " + std::to_string(size));
  const std::size_t count = buffer.count();
  const std::size_t bytes = count * element_bytes(buffer.dtype());
  const ManagedMemory data(offset + bytes), results(sizeof(PassOutput)),
      sketch(size * sizeof(float)), workspace(workspace_bytes(count, size));
  char* from = static_cast<char*>(data.memory) + offset;
  std::memcpy(from, buffer.data(), bytes);
  auto* found = static_cast<PassOutput*>(results.memory);
  auto* values = static_cast<float*>(sketch.memory);
  std::vector<float> wanted_sketch(size, 0.25F);
  std::copy(wanted_sketch.begin(), wanted_sketch.end(), values);
  const Status status = gradient_pass(
      from, count, buffer.dtype(), {values, size, kSeed},
      {&found->sum_squares, &found->max_abs, &found->nonfinite, &found->fingerprint, &found->zeros},
      workspace.memory, stream_);
  ASSERT_TRUE(status) << status.error().message;
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  const GradientSums wanted =
      emulate(buffer.data(), count, buffer.dtype(), {wanted_sketch.data(), size, kSeed});
  const bool both_nan = std::isnan(found->sum_squares) && std::isnan(wanted.sum_squares);
  EXPECT_TRUE(both_nan || same_bits(found->sum_squares, wanted.sum_squares));
  EXPECT_TRUE(same_bits(found->max_abs, wanted.max_abs));
  EXPECT_EQ(static_cast<std::uint64_t>(found->nonfinite), wanted.nonfinite);
  EXPECT_EQ(found->fingerprint, wanted.fingerprint);
  EXPECT_EQ(static_cast<std::uint64_t>(found->zeros), wanted.zeros);
  for (std::uint32_t i = 0; i < size; ++i) {
    ASSERT_TRUE(same_or_both_nan(values[i], wanted_sketch[i])) << "bucket " << i;
  }
}

TEST_P(GpuTest, EveryLengthAndSketchGivesTheBitsOfTheHost) {
  for (const std::size_t count : {0, 1, 2, 3, 64, 1023, 1024, 1025, 4097, 50'001, 5'000'001}) {
    const Buffer buffer = finite_buffer(GetParam(), count);
    for (const std::uint32_t size : {0U, 64U, 1024U, 4096U, 8192U, 65536U}) {
      expect_the_bits_of_the_host(buffer, 0, size);
    }
    expect_the_bits_of_the_host(buffer, element_bytes(GetParam()), 4096);
  }
}

TEST_P(GpuTest, NonFiniteElementsGiveWhatTheHostGives) {
  Buffer buffer = finite_buffer(GetParam(), 5000);
  buffer.set_bits(4000, infinity_bits(GetParam()));
  expect_the_bits_of_the_host(buffer, 0, 64);
  buffer.set_bits(3, nan_bits(GetParam()));
  expect_the_bits_of_the_host(buffer, 0, 64);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, GpuTest, testing::ValuesIn(kDtypes),
                         [](const auto& test) { return dtype_name(test.param); });

TEST(CudaPassTest, AnImpossibleSketchIsRefused) {
  const Status status =
      gradient_pass(nullptr, 0, Dtype::kF32, {nullptr, 63, 0}, {}, nullptr, nullptr);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace presum::observe::cuda
