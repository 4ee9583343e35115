// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "mpi/testing.h"
#include "presum/mpi.h"

namespace presum::mpi {
namespace {

constexpr std::size_t kLeaves = 12;
using Bytes = std::vector<std::byte>;
using Buffers = std::vector<Bytes>;

// The same on every rank: finite values of all magnitudes, and a few that are not finite.
Buffers leaves_of_all(Dtype dtype, std::size_t count) {
  std::mt19937_64 random(count + static_cast<std::size_t>(dtype));
  Buffers leaves(kLeaves, Bytes(count * element_bytes(dtype)));
  for (Bytes& leaf : leaves) {
    for (std::byte& byte : leaf) byte = static_cast<std::byte>(random());
  }
  return leaves;
}

std::vector<const void*> pointers(const Buffers& leaves, std::size_t begin, std::size_t end) {
  std::vector<const void*> out;
  for (std::size_t i = begin; i < end; ++i) out.push_back(leaves[i].data());
  return out;
}

// The leaves of a rank, for two ways to distribute them.
std::vector<const void*> own(const Buffers& leaves, bool evenly) {
  constexpr std::size_t kEven[] = {0, 3, 6, 9, 12};
  constexpr std::size_t kUneven[] = {0, 1, 6, 10, 12};
  const auto& bounds = evenly ? kEven : kUneven;
  const auto r = static_cast<std::size_t>(rank());
  return pointers(leaves, bounds[r], bounds[r + 1]);
}

Bytes over_ranks(const Buffers& leaves, Dtype dtype, std::size_t count, bool evenly,
                 Mean mean = Mean::kOverLeaves) {
  Bytes out(count * element_bytes(dtype));
  const auto done = allreduce(own(leaves, evenly), dtype, count, mean, out.data(), MPI_COMM_WORLD);
  EXPECT_TRUE(done) << done.error().message;
  return out;
}

Bytes in_process(const Buffers& leaves, Dtype dtype, std::size_t count, std::uint32_t divisor) {
  Bytes out(count * element_bytes(dtype));
  EXPECT_TRUE(reduce::exact(pointers(leaves, 0, kLeaves), dtype, count, divisor, out.data()));
  return out;
}

TEST(AllReduce, ExactIsTheSumInOneProcessHoweverLeavesAreShared) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF64, Dtype::kBF16, Dtype::kF16}) {
    for (const std::size_t count : {1, 3, 4, 1027}) {
      const Buffers leaves = leaves_of_all(dtype, count);
      const Bytes truth = in_process(leaves, dtype, count, kLeaves);
      EXPECT_EQ(over_ranks(leaves, dtype, count, true), truth);
      EXPECT_EQ(over_ranks(leaves, dtype, count, false), truth);
    }
  }
}

TEST(AllReduce, DividesByNothingByRanksOrByLeaves) {
  const Buffers leaves = leaves_of_all(Dtype::kF32, 64);
  const auto sum = [&](Mean mean) { return over_ranks(leaves, Dtype::kF32, 64, true, mean); };
  EXPECT_EQ(sum(Mean::kNone), in_process(leaves, Dtype::kF32, 64, 1));
  EXPECT_EQ(sum(Mean::kOverRanks),
            in_process(leaves, Dtype::kF32, 64, static_cast<std::uint32_t>(size())));
}

TEST(AllReduce, BuffersLongerThanABlockAreReducedInPlace) {
  const std::size_t count = (std::size_t{1} << 20) + 5;
  Bytes mine(count * 4);
  const auto value = static_cast<float>(rank() + 1);
  for (std::size_t i = 0; i < count; ++i) std::memcpy(&mine[4 * i], &value, 4);
  const std::vector<const void*> leaf{mine.data()};
  ASSERT_TRUE(allreduce(leaf, Dtype::kF32, count, Mean::kNone, mine.data(), MPI_COMM_WORLD));
  float last = 0;
  std::memcpy(&last, &mine[4 * (count - 1)], 4);
  EXPECT_EQ(last, static_cast<float>(size() * (size() + 1)) / 2);
}

TEST(AllReduce, NoElementsAreNothingToDo) {
  const std::vector<const void*> leaf{nullptr};
  EXPECT_TRUE(allreduce(leaf, Dtype::kF32, 0, Mean::kNone, nullptr, MPI_COMM_WORLD));
}

TEST(AllReduce, WhatOneRankGetsWrongEveryRankIsTold) {
  const Buffers leaves = leaves_of_all(Dtype::kF32, 8);
  Bytes out(32, std::byte{7});
  const std::size_t count = rank() == 1 ? 7 : 8;
  const auto disagree =
      allreduce(own(leaves, true), Dtype::kF32, count, Mean::kNone, out.data(), MPI_COMM_WORLD);
  ASSERT_FALSE(disagree);
  EXPECT_EQ(disagree.error().code, ErrorCode::kInvalidArgument);
  const auto few = rank() == 2 ? std::vector<const void*>{} : own(leaves, true);
  EXPECT_FALSE(allreduce(few, Dtype::kF32, 8, Mean::kNone, out.data(), MPI_COMM_WORLD));
  EXPECT_EQ(out, Bytes(32, std::byte{7}));
}

}  // namespace
}  // namespace presum::mpi
