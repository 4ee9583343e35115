// SPDX-License-Identifier: Apache-2.0
#include "reduce/gram.h"

#include <gtest/gtest.h>

#include "reduce/testing.h"

namespace presum::reduce {
namespace {

std::vector<double> gram_of(const LeafSet& set, Buffer& out) {
  std::vector<double> gram(set.buffers.size() * set.buffers.size());
  EXPECT_TRUE(exact_with_gram(set.pointers(), set.dtype, set.count(), 1, out.data(), gram));
  return gram;
}

// Equal bits, or both NaN.
void expect_same(const std::vector<double>& got, const std::vector<double>& wanted) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(std::bit_cast<std::uint64_t>(got[i]) == std::bit_cast<std::uint64_t>(wanted[i]) ||
                (std::isnan(got[i]) && std::isnan(wanted[i])))
        << got[i] << " instead of " << wanted[i];
  }
}

// The dot product of one block, as defined in gram.h.
double block_dot(const Buffer& a, const Buffer& b, std::size_t first, std::size_t size) {
  std::array<double, kGramLanes> sums{};
  for (std::size_t i = 0; i < size; ++i) {
    sums[i % kGramLanes] +=
        value_of(a.bits(first + i), a.dtype()) * value_of(b.bits(first + i), b.dtype());
  }
  for (std::size_t half = kGramLanes / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

void gram_reference(const LeafSet& set, std::vector<double>& gram) {
  const std::size_t n = set.buffers.size();
  for (std::size_t first = 0; first < set.count(); first += kGramBlock) {
    const std::size_t size = std::min(kGramBlock, set.count() - first);
    for (std::size_t at = 0; at < n * n; ++at) {
      gram[at] += block_dot(set.buffers[at / n], set.buffers[at % n], first, size);
    }
  }
}

class GramTest : public testing::TestWithParam<Dtype> {};

TEST_P(GramTest, EveryTargetGivesTheDefinedProductsAndTheExactSum) {
  for (const Kind kind : {Kind::kGaussian, Kind::kWide, Kind::kAnyBits, Kind::kNotFinite}) {
    for (const std::size_t leaves : {1, 2, 3, 5, 8, 9}) {
      for (const std::size_t count : {0, 1, 15, 16, 17, 255, 256, 257, 1030}) {
        const LeafSet set = random_leaves(kind, GetParam(), leaves, count, leaves % 3);
        std::vector<double> wanted(leaves * leaves);
        gram_reference(set, wanted);
        Buffer sum(GetParam(), count), out(GetParam(), count);
        ASSERT_TRUE(exact(set.pointers(), GetParam(), count, 1, sum.data()));
        base::on_every_target([&] {
          expect_same(gram_of(set, out), wanted);
          EXPECT_TRUE(out == sum);
        });
      }
    }
  }
}

TEST_P(GramTest, AsManyLeavesAsAreAllowedAddToWhatIsThere) {
  const LeafSet set = random_leaves(Kind::kGaussian, GetParam(), 64, 40);
  std::vector<double> wanted(64 * 64, 2), got(64 * 64, 2);
  gram_reference(set, wanted);
  Buffer out(GetParam(), 40);
  ASSERT_TRUE(exact_with_gram(set.pointers(), GetParam(), 40, 64, out.data(), got));
  expect_same(got, wanted);
}

TEST_P(GramTest, TheResultMayReplaceALeaf) {
  LeafSet set = random_leaves(Kind::kWide, GetParam(), 4, 2000);
  Buffer out(GetParam(), 2000);
  const std::vector<double> wanted = gram_of(set, out);
  std::vector<double> got(16);
  ASSERT_TRUE(exact_with_gram(set.pointers(), GetParam(), 2000, 1, set.buffers[1].data(), got));
  expect_same(got, wanted);
  EXPECT_TRUE(set.buffers[1] == out);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, GramTest, testing::ValuesIn(kDtypes),
                         [](const auto& param) { return name_of(param.param); });

TEST(GramArgumentsTest, WrongArgumentsAreErrors) {
  const float x = 1;
  float out = 0;
  std::vector<const void*> leaves(65, &x);
  std::vector<double> gram(65 * 65);
  const Status many = exact_with_gram(leaves, Dtype::kF32, 1, 1, &out, gram);
  ASSERT_FALSE(many);
  EXPECT_EQ(many.error().message, "reduce: 65 leaves are more than the 64 that are possible");
  leaves.resize(3);
  const Status wrong = exact_with_gram(leaves, Dtype::kF32, 1, 1, &out, gram);
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().message, "reduce: gram has 4225 numbers instead of 9");
}

}  // namespace
}  // namespace presum::reduce
