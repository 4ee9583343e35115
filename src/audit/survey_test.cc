// SPDX-License-Identifier: Apache-2.0
#include "audit/survey.h"

#include <gtest/gtest.h>

#include "audit/testing.h"

namespace presum::audit {
namespace {

SurveyResult surveyed(const Buffers& buffers, std::uint64_t piece) {
  auto survey = Survey::create({.workers = static_cast<std::uint32_t>(buffers.workers()),
                                .dtype = buffers.dtype(),
                                .elements = buffers.count()});
  const std::size_t bytes = element_bytes(buffers.dtype());
  for (std::size_t first = 0; first < buffers.count(); first += piece) {
    std::vector<const void*> leaves;
    for (const void* leaf : buffers.pointers()) {
      leaves.push_back(static_cast<const std::byte*>(leaf) + first * bytes);
    }
    (*survey)->add(leaves, std::min<std::size_t>(piece, buffers.count() - first));
  }
  return (*survey)->result();
}

const Measures& row(const SurveyResult& result, const std::string& name) {
  for (const SurveyRow& r : result.rows) {
    if (r.name == name) return r.measures;
  }
  throw std::out_of_range(name);
}

TEST(Survey, EveryOrderDiffersFromTheExactSumAndTheExactSumFromNothing) {
  const auto result = surveyed(Buffers(16, Dtype::kF32, 40'000), 40'000);
  for (const SurveyRow& r : result.rows) {
    EXPECT_EQ(r.measures.elements, 40'000U);
    if (r.name == "exact") continue;
    EXPECT_GT(r.measures.differing, 8'000U) << r.name;
  }
  EXPECT_EQ(result.rows.back().name, "exact");
  EXPECT_EQ(row(result, "exact").differing, 0U);
  ASSERT_EQ(result.pairs.size(), 5U);
  for (std::size_t p = 0; p < 4; ++p) EXPECT_GT(result.pairs[p].differing, 10'000U);
  EXPECT_GT(result.pairs[3].differing, 35'000U);  // any of 20 orders
  EXPECT_EQ(result.pairs[4].differing, 0U);       // the same for the exact sum
}

TEST(Survey, TheRingIsTheOneThatInferenceFinds) {
  const Buffers buffers(8, Dtype::kF32, 16'000);
  const auto result = surveyed(buffers, 16'000);
  const auto ring = summed(buffers, Dtype::kF32, [](std::size_t i) {
    std::vector<std::uint32_t> turn(8);
    for (std::uint32_t k = 0; k < 8; ++k) {
      turn[k] = (static_cast<std::uint32_t>(i / 2000) + 1 + k) % 8;
    }
    return turn;
  });
  const auto packed = buffers.packed(ring);
  const auto c = compare(buffers.pointers(), Dtype::kF32, 16'000, 1, packed.data());
  EXPECT_EQ(c->inferred.order, SumOrder::kRing);
  EXPECT_EQ(c->measures.differing, row(result, "ring").differing);
  const double expected = row(result, "ring").relative_l2();
  EXPECT_NEAR(c->measures.relative_l2(), expected, 1e-12 * expected);
}

TEST(Survey, SaysTheSameHoweverTheBuffersAreCut) {
  const Buffers buffers(6, Dtype::kF32, 9001);
  const auto whole = surveyed(buffers, 9001);
  const auto cut = surveyed(buffers, 777);
  for (std::size_t r = 0; r < whole.rows.size(); ++r) {
    EXPECT_EQ(whole.rows[r].measures.differing, cut.rows[r].measures.differing) << r;
  }
  for (std::size_t p = 0; p < whole.pairs.size(); ++p) {
    EXPECT_EQ(whole.pairs[p].differing, cut.pairs[p].differing) << p;
  }
}

TEST(Survey, SixteenBitHopsLoseMoreThanFp32Sums) {
  for (const Dtype dtype : {Dtype::kBF16, Dtype::kF16}) {
    const auto result = surveyed(Buffers(8, dtype, 20'000), 20'000);
    EXPECT_GT(row(result, "ring").relative_l2(), 1.5 * row(result, "fp32 ring").relative_l2());
    EXPECT_LT(row(result, "fp32 ring").differing, 20U);
    EXPECT_EQ(row(result, "exact").differing, 0U);
  }
}

TEST(Survey, WorksForOneAndTwoWorkersOddNumbersAndDoubles) {
  for (const std::uint32_t workers : {1U, 2U, 5U}) {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kF64}) {
      const auto result = surveyed(Buffers(workers, dtype, 100), 100);
      EXPECT_EQ(result.pairs.size(), 4U);
      EXPECT_EQ(row(result, "exact").differing, 0U);
      if (workers <= 2) {
        EXPECT_EQ(row(result, "ring").differing, 0U);
      }
    }
  }
}

TEST(Synthetic, IsFixedBySeedWorkerAndElement) {
  for (const auto d : {Distribution::kGradients, Distribution::kGaussian, Distribution::kLognormal,
                       Distribution::kWide}) {
    std::vector<double> whole(100);
    std::vector<double> tail(40);
    generate(d, 1, 3, 0, whole);
    generate(d, 1, 3, 60, tail);
    EXPECT_TRUE(std::equal(tail.begin(), tail.end(), whole.begin() + 60));
    generate(d, 2, 3, 60, tail);
    EXPECT_FALSE(std::equal(tail.begin(), tail.end(), whole.begin() + 60));
  }
}

}  // namespace
}  // namespace presum::audit
