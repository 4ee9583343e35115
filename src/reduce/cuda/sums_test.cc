// SPDX-License-Identifier: Apache-2.0
#include "reduce/cuda/sums.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "device/host_grid.h"
#include "reduce/long_sum.h"
#include "reduce/quotient.h"
#include "reduce/testing.h"

// The threads of the CUDA kernels, on the host's grid, give the bits of presum/reduce.h.
namespace presum::reduce::cuda {
namespace {

using device::HostGrid;
using device::Order;

constexpr std::size_t kLeaves[] = {1, 2, 3, 8, 33, kNearLeaves, kNearLeaves + 1};
constexpr std::size_t kCount = 300;  // one full block of threads, and a partial one

std::vector<std::uint32_t> divisors(std::size_t leaves) {
  return {1, static_cast<std::uint32_t>(leaves), 3, 1U << 20, kDivisorMax};
}

// Leaves on the "device".
struct Given {
  explicit Given(const LeafSet& set) : pointers(set.pointers()) {}
  DeviceLeaves leaves() const {
    return {pointers, pointers.size() > kNearLeaves ? pointers.data() : nullptr};
  }
  std::vector<const void*> pointers;
};

void expect_same_bits(const Buffer& got, const Buffer& wanted, Dtype dtype) {
  for (std::size_t i = 0; i < wanted.count(); ++i) {
    ASSERT_EQ(got.bits(i), wanted.bits(i)) << name_of(dtype) << ", element " << i;
  }
}

class CudaSumsTest : public testing::TestWithParam<Dtype> {
 protected:
  template <class Function>
  void for_every_kind(Function function) {
    for (const Kind kind : kKinds) {
      for (const std::size_t leaves : kLeaves) {
        SCOPED_TRACE(std::to_string(static_cast<int>(kind)) +
                     ", leaves: " + std::to_string(leaves));
        const LeafSet set = random_leaves(kind, GetParam(), leaves, kCount);
        function(set, Given(set));
      }
    }
  }

  HostGrid grid_{Order::kBackward};
  Queue queue_{grid_, nullptr};
};

TEST_P(CudaSumsTest, ExactSumsHaveTheBitsOfTheHost) {
  for_every_kind([&](const LeafSet& set, const Given& given) {
    for (const std::uint32_t divisor : divisors(given.pointers.size())) {
      Buffer wanted(GetParam(), kCount), got(GetParam(), kCount);
      ASSERT_TRUE(reduce::exact(set.pointers(), GetParam(), kCount, divisor, wanted.data()));
      ASSERT_TRUE(exact(queue_, given.leaves(), GetParam(), kCount, divisor, got.data()));
      expect_same_bits(got, wanted, GetParam());
    }
  });
}

TEST_P(CudaSumsTest, TheResultMayReplaceALeaf) {
  LeafSet set = random_leaves(Kind::kGaussian, GetParam(), 5, kCount);
  Buffer wanted(GetParam(), kCount);
  ASSERT_TRUE(reduce::exact(set.pointers(), GetParam(), kCount, 5, wanted.data()));
  const Given given(set);
  ASSERT_TRUE(exact(queue_, given.leaves(), GetParam(), kCount, 5, set.buffers[3].data()));
  expect_same_bits(set.buffers[3], wanted, GetParam());
}

// Two leaves as far apart as 128 bits can hold, and slightly further.
TEST_P(CudaSumsTest, SpreadsAroundTheWindowAreExact) {
  const int mantissa = layout_of(GetParam()).mantissa_bits;
  const auto exponents = static_cast<int>(infinity_bits(GetParam()) >> mantissa);
  for (int one = 1; one < exponents; one += 7) {
    for (int spread = -90; spread <= 90; ++spread) {
      const int other = one + spread;
      if (other < 0 || other >= exponents) continue;
      LeafSet set{GetParam(), {}};
      for (const int exponent : {one, other, 0}) {
        set.buffers.emplace_back(GetParam(), 1);
        set.buffers.back().set_bits(
            0, (static_cast<std::uint64_t>(exponent) << mantissa) | (exponent == other ? 1 : 0));
      }
      const Given given(set);
      Buffer wanted(GetParam(), 1), got(GetParam(), 1);
      ASSERT_TRUE(reduce::exact(set.pointers(), GetParam(), 1, 3, wanted.data()));
      ASSERT_TRUE(exact(queue_, given.leaves(), GetParam(), 1, 3, got.data()));
      ASSERT_EQ(got.bits(0), wanted.bits(0)) << one << ", " << other;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaSumsTest, testing::ValuesIn(kDtypes),
                         [](const auto& test) { return name_of(test.param); });

TEST(CudaSumsTest, QuotientsOfAnyIntegersAreRoundedAsLongSumsAre) {
  Random random(5);
  for (int round = 0; round < 300'000; ++round) {
    const Wide any = (static_cast<Wide>(random()) << 64) | random();
    const Wide size = any >> (1 + random() % 127);
    const auto divisor = static_cast<std::uint32_t>(1 + random() % kDivisorMax) >> (random() % 31);
    constexpr Dtype kNarrow[] = {Dtype::kF32, Dtype::kBF16, Dtype::kF16};
    const Format format = format_of(kNarrow[random() % 3]);
    const int unit = static_cast<int>(random() % 420) - 300;
    const bool negative = random() % 2 == 0;
    LongSum sum;
    // Its shifts are not negative, so its unit is lower by the same amount.
    sum.add(negative, static_cast<std::uint64_t>(size), 0);
    sum.add(negative, static_cast<std::uint64_t>(size >> 64), 64);
    const WideInt integer = negative ? -static_cast<WideInt>(size) : static_cast<WideInt>(size);
    const std::uint32_t by = std::max(divisor, 1U);
    ASSERT_EQ(round_quotient(integer, by, unit, format), sum.round(by, unit, format))
        << "unit " << unit << ", divisor " << by;
  }
}

TEST(CudaSumsTest, ALaunchSaysWhatItMoves) {
  HostGrid grid;
  const LeafSet set = random_leaves(Kind::kGaussian, Dtype::kBF16, 8, kCount);
  const Given given(set);
  Buffer out(Dtype::kBF16, kCount);
  ASSERT_TRUE(exact({grid, nullptr}, given.leaves(), Dtype::kBF16, kCount, 8, out.data()));
  ASSERT_EQ(grid.launched().size(), 1);
  EXPECT_EQ(grid.launched()[0].blocks, 2);
  EXPECT_EQ(grid.launched()[0].traffic.gradient_bytes, 8 * 2 * kCount);
  EXPECT_EQ(grid.launched()[0].traffic.other_bytes, 2 * kCount);
}

TEST(CudaSumsTest, WrongArgumentsAreErrors) {
  HostGrid grid;
  const Queue queue{grid, nullptr};
  Buffer out(Dtype::kF32, 1);
  const std::vector<const void*> one = {out.data()};
  const std::vector<const void*> many(kNearLeaves + 1, out.data());
  EXPECT_FALSE(exact(queue, {}, Dtype::kF32, 1, 1, out.data()));
  EXPECT_FALSE(exact(queue, {one}, Dtype::kF32, 1, 0, out.data()));
  // the uploaded list is missing
  EXPECT_FALSE(exact(queue, {many}, Dtype::kF32, 1, 1, out.data()));
  EXPECT_TRUE(exact(queue, {one}, Dtype::kF32, 0, 1, nullptr));
  EXPECT_TRUE(grid.launched().empty());
}

}  // namespace
}  // namespace presum::reduce::cuda
