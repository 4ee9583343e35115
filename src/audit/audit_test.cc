// SPDX-License-Identifier: Apache-2.0
#include "audit/audit.h"

#include <gtest/gtest.h>

#include "audit/testing.h"

namespace presum::audit {
namespace {

std::vector<double> in_turn_of(const Buffers& buffers) {
  std::vector<std::uint32_t> turn(buffers.workers());
  for (std::uint32_t w = 0; w < turn.size(); ++w) turn[w] = w;
  return summed(buffers, Dtype::kF32, [&](std::size_t) { return turn; });
}

TEST(Auditor, SaysTheSameHoweverTheBuffersAreCut) {
  const Buffers buffers(6, Dtype::kF32, 9000);
  const auto result = buffers.packed(in_turn_of(buffers));
  const auto leaves = buffers.pointers();
  const auto whole = compare(leaves, Dtype::kF32, 9000, 1, result.data());
  auto auditor = Auditor::create(6, Dtype::kF32, 1, 9000);
  for (std::size_t first = 0; first < 9000;) {
    const std::size_t count = std::min<std::size_t>(9000 - first, 1 + first % 3000);
    std::vector<const void*> moved;
    for (const void* leaf : leaves)
      moved.push_back(static_cast<const std::byte*>(leaf) + 4 * first);
    ASSERT_TRUE((*auditor)->add(moved, count, result.data() + 4 * first));
    first += count;
  }
  const auto cut = (*auditor)->comparison();
  EXPECT_EQ(cut.measures.differing, whole->measures.differing);
  EXPECT_EQ(cut.measures.relative_l2(), whole->measures.relative_l2());
  EXPECT_EQ(cut.inferred.order, SumOrder::kSequential);
  EXPECT_EQ(cut.record(Dtype::kF32).elements, 9000U);
}

TEST(Auditor, TakesDoubles) {
  const Buffers buffers(4, Dtype::kF64, 1000);
  std::vector<double> result;
  for (std::size_t i = 0; i < 1000; ++i) {
    result.push_back((buffers.at(0, i) + buffers.at(1, i)) + (buffers.at(2, i) + buffers.at(3, i)));
  }
  const auto c = compare(buffers.pointers(), Dtype::kF64, 1000, 1, result.data());
  EXPECT_EQ(c->inferred.order, SumOrder::kTree);
  EXPECT_EQ(c->inferred.accumulation, Accumulation::kF64);
  EXPECT_EQ(c->record(Dtype::kF64).gradient, Accumulation::kF64);
  for (double& x : result) x = static_cast<float>(x);
  const auto narrow = compare(buffers.pointers(), Dtype::kF64, 1000, 1, result.data());
  EXPECT_EQ(narrow->inferred.accumulation, Accumulation::kF32);
}

TEST(Auditor, OneWorkersSumIsItsOwnValue) {
  const Buffers buffers(1, Dtype::kF32, 100);
  const auto c = compare(buffers.pointers(), Dtype::kF32, 100, 1, buffers.pointers()[0]);
  EXPECT_EQ(c->measures.differing, 0U);
  EXPECT_EQ(c->inferred.order, SumOrder::kAny);
}

TEST(Auditor, RefusesArgumentsInOneLine) {
  const float x = 1;
  const std::vector<const void*> none;
  const std::vector<const void*> one = {&x};
  const std::vector<const void*> null = {nullptr};
  EXPECT_EQ(compare(none, Dtype::kF32, 1, 1, &x).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(compare(null, Dtype::kF32, 1, 1, &x).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(compare(one, Dtype::kF32, 1, 0, &x).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(compare(one, Dtype::kF32, 1, 1, nullptr).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(compare(one, static_cast<Dtype>(9), 1, 1, &x).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(Auditor::create(1025, Dtype::kF32, 1, 1).error().message,
            "1025 ranks (1 to 1024 are possible)");
  EXPECT_TRUE(compare(one, Dtype::kF32, 0, 1, nullptr));
  const auto auditor = Auditor::create(2, Dtype::kF32, 1, 1);
  EXPECT_EQ((*auditor)->add(one, 1, &x).error().message, "1 buffers of 2 ranks");
}

TEST(Nearer, TellsMeansFromSumsAndZerosFromNeither) {
  const Buffers buffers(4, Dtype::kF32, 3000);
  const auto tell = [&](const std::vector<double>& values) {
    return nearer(buffers.pointers(), Dtype::kF32, 3000, buffers.packed(values).data());
  };
  auto values = in_turn_of(buffers);
  EXPECT_EQ(tell(values).to_sum, 3000U);
  for (double& x : values) x /= 4;
  EXPECT_EQ(tell(values).to_mean, 3000U);
  values.front() = 1e30;  // one element alone is not decisive
  EXPECT_EQ(tell(values).to_mean, 2999U);
  const std::vector<float> zeros(10);
  const std::vector<const void*> leaves(2, zeros.data());
  const Nearer none = nearer(leaves, Dtype::kF32, 10, zeros.data());
  EXPECT_EQ(none.to_sum + none.to_mean, 0U);
}

}  // namespace
}  // namespace presum::audit
