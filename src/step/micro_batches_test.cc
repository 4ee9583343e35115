// SPDX-License-Identifier: Apache-2.0
#include "step/micro_batches.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace presum::step {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

MicroBatches with(const std::vector<MicroBatch>& all) {
  MicroBatches out;
  for (const MicroBatch& one : all) out.add(one);
  return out;
}

TEST(MicroBatchesTest, AsManyAsAreSentStayApart) {
  EXPECT_TRUE(MicroBatches().bounded().empty());
  const auto sent = with(std::vector<MicroBatch>(kMicroBatchesMax, {2, 3, 4})).bounded();
  ASSERT_EQ(sent.size(), kMicroBatchesMax);
  EXPECT_EQ(sent.back().loss, 2);
}

// Compares with long double, at every count around the bounds and at many others.
TEST(MicroBatchesTest, MoreAreOneWithTheirWeightedMean) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> loss(-10, 10);
  std::uniform_real_distribution<double> weight(0, 5);
  for (const std::size_t count : {kMicroBatchesMax + 1, 2 * kMicroBatchesMax,
                                  2 * kMicroBatchesMax + 1, std::size_t{65'537}}) {
    std::vector<MicroBatch> all(count);
    long double sum = 0;
    long double weights = 0;
    for (MicroBatch& one : all) {
      one = {loss(random), weight(random), 3};
      sum += static_cast<long double>(one.loss) * one.weight;
      weights += one.weight;
    }
    const auto sent = with(all).bounded();
    ASSERT_EQ(sent.size(), 1U) << count;
    EXPECT_NEAR(sent[0].loss, static_cast<double>(sum / weights), 1e-13) << count;
    EXPECT_NEAR(sent[0].weight, static_cast<double>(weights), 1e-8) << count;
    EXPECT_EQ(sent[0].tokens, 3 * count);
  }
}

TEST(MicroBatchesTest, WhatIsNotFiniteIsNotLost) {
  std::vector<MicroBatch> all(3 * kMicroBatchesMax, {1, 1, 0});
  all[5].loss = kInf;
  EXPECT_EQ(with(all).bounded()[0].loss, kInf);
  all[6].loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isnan(with(all).bounded()[0].loss));
}

TEST(MicroBatchesTest, WithoutWeightsItIsThePlainMean) {
  std::vector<MicroBatch> all(kMicroBatchesMax + 2, {1, 0, 0});
  for (std::size_t i = 0; i < all.size(); i += 2) all[i].loss = 3;
  const auto sent = with(all).bounded();
  EXPECT_EQ(sent[0].loss, 2);
  EXPECT_EQ(sent[0].weight, 0);
}

}  // namespace
}  // namespace presum::step
