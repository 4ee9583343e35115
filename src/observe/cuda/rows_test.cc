// SPDX-License-Identifier: Apache-2.0
#include "observe/cuda/rows.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "device/host_grid.h"

namespace presum::observe::cuda {
namespace {

// Elements with few distinct values, so that rows end in runs.
std::vector<std::uint8_t> bytes_of_few_values(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::uint8_t> bytes(count);
  for (std::uint8_t& byte : bytes) byte = random() % 3 == 0 ? 1 : 0;
  return bytes;
}

void expect_those_of_the_host(const RowBatch& batch) {
  std::vector<std::uint64_t> wanted(batch.rows), got(batch.rows);
  presum::hash_rows(batch, wanted);
  for (const device::Order order : {device::Order::kForward, device::Order::kBackward}) {
    device::HostGrid grid(order);
    ASSERT_TRUE(hash_rows(grid, batch, got.data(), nullptr));
    EXPECT_EQ(grid.launched().size(), batch.rows == 0 ? 0 : 1);
    EXPECT_EQ(got, wanted);
  }
}

TEST(CudaRowsTest, HashesAreThoseOfTheHost) {
  for (const std::uint32_t width : {1U, 2U, 4U, 8U}) {
    for (const std::uint64_t columns :
         {1ULL, 2ULL, 3ULL, 255ULL, 257ULL, 4096ULL, 4097ULL, 9000ULL}) {
      for (const std::uint64_t rows : {0ULL, 1ULL, 17ULL}) {
        const auto data = bytes_of_few_values(rows * columns * width, width);
        const auto mask = bytes_of_few_values(rows * columns * 8, 9);
        RowBatch batch{
            .data = data.data(), .rows = rows, .columns = columns, .element_bytes = width};
        expect_those_of_the_host(batch);
        batch.mask = mask.data();
        for (const std::uint32_t mask_width : {1U, 8U}) {
          batch.mask_bytes = mask_width;
          expect_those_of_the_host(batch);
        }
      }
    }
  }
}

TEST(CudaRowsTest, RowsOfOneValueOrOfNoneThatIsKept) {
  const std::vector<std::uint32_t> same(3000, 7);
  const std::vector<std::uint8_t> none(3000, 0);
  expect_those_of_the_host({.data = same.data(), .rows = 3, .columns = 1000, .element_bytes = 4});
  expect_those_of_the_host({.data = same.data(),
                            .rows = 3,
                            .columns = 1000,
                            .element_bytes = 4,
                            .mask = none.data(),
                            .mask_bytes = 1});
}

}  // namespace
}  // namespace presum::observe::cuda
