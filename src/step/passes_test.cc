// SPDX-License-Identifier: Apache-2.0
#include "step/passes.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <vector>

namespace presum::step {
namespace {

Pass of_loss(double loss, double tokens = 0) {
  return {.forwards = {{.loss = loss, .tokens = tokens}}};
}

TEST(Passes, WithoutAnyThereIsNoLoss) {
  EXPECT_TRUE(Passes().micro_batches({}).empty());
  EXPECT_TRUE(std::isnan(Passes().gradient_weight({})));
}

TEST(Passes, TheLossIsThatOfTheOnlyForwardWithOne) {
  Passes passes;
  passes.add(
      {.forwards = {{.loss = {}, .tokens = 3.0}, {.loss = 2.5, .tokens = 4.0}}, .root = 9.0});
  const auto told = passes.micro_batches({});
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].loss, 2.5);
  EXPECT_EQ(told[0].tokens, 7U);
  EXPECT_EQ(told[0].weight, 1);
}

TEST(Passes, OfSeveralLossesOrNoneItIsTheRootUnscaled) {
  for (const std::vector<ForwardFacts>& forwards :
       {std::vector<ForwardFacts>{{.loss = 1.0}, {.loss = 2.0}}, std::vector<ForwardFacts>(2)}) {
    Passes passes;
    passes.add({.forwards = forwards, .root = 48.0, .root_scale = 16.0});
    ASSERT_EQ(passes.micro_batches({}).size(), 1U);
    EXPECT_EQ(passes.micro_batches({})[0].loss, 3);
  }
}

TEST(Passes, WithoutARootItIsNotKnown) {
  Passes passes;
  passes.add({.forwards = {{}}});
  EXPECT_TRUE(passes.micro_batches({}).empty());
}

// The loss of a micro-batch is its sum over all tokens of the step; presum reports the mean over
// its own tokens. Compares with a literal computation.
TEST(Passes, ALossThatIsAShareOfAllTokensIsTheMeanOverItsOwn) {
  std::mt19937_64 random(3);
  Passes passes;
  std::vector<std::pair<double, double>> all;  // mean loss and tokens
  double total = 0;
  for (int i = 0; i < 9; ++i) {
    all.emplace_back(static_cast<double>(random() % 1000) / 64,
                     static_cast<double>(1 + random() % 50));
    total += all.back().second;
  }
  for (const auto& [mean, tokens] : all) {
    passes.add(
        {.forwards = {{.loss = mean * tokens / total, .tokens = tokens, .share = tokens / total}},
         .gradient_factor = 4});
  }
  const auto told = passes.micro_batches({});
  ASSERT_EQ(told.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_NEAR(told[i].loss, all[i].first, 1e-12);
    EXPECT_EQ(told[i].weight, all[i].second);
  }
  EXPECT_NEAR(passes.gradient_weight({}), 4, 1e-12);
}

TEST(Passes, TargetsWeighWhatArrivesWithoutTheLossScale) {
  Passes passes;
  passes.add({.root = 8.0, .root_scale = 4.0, .targets = 5.0, .targets_weight = 2.0});
  passes.add({.forwards = {{.loss = 3.0, .tokens = 10.0}}, .targets_weight = 0.5});
  passes.add({.root = 1.0, .targets = 5.0});
  passes.add({.root = 1.0, .targets = Late{0}, .targets_weight = Late{1}});
  const auto told = passes.micro_batches(std::array{20.0, 1.0});
  ASSERT_EQ(told.size(), 4U);
  EXPECT_EQ(told[0].token_weight, 0.1);
  EXPECT_TRUE(told[0].differentiated);
  EXPECT_EQ(told[1].targets, 10U) << "the tokens of its forward pass";
  EXPECT_EQ(told[1].token_weight, 0.05);
  EXPECT_FALSE(told[1].differentiated);
  EXPECT_TRUE(std::isnan(told[2].token_weight));
  EXPECT_EQ(told[3].targets, 20U);
  EXPECT_EQ(told[3].token_weight, 0.05);
}

TEST(Passes, OneUnknownShareMakesTheWeightUnknown) {
  Passes passes;
  passes.add({.forwards = {{.loss = 1.0, .tokens = 2.0, .share = 0.5}}});
  passes.add(of_loss(1));
  EXPECT_TRUE(std::isnan(passes.gradient_weight({})));
}

TEST(Passes, ALossThatIsReportedReplacesThoseOfPasses) {
  Passes passes;
  passes.add(of_loss(1, 10));
  passes.add(of_loss(2, 20));
  passes.report(7.0, 3, 0);
  auto told = passes.micro_batches({});
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].loss, 7);
  EXPECT_EQ(told[0].tokens, 30U);
  passes.report(8.0, 1, 0);
  told = passes.micro_batches({});
  ASSERT_EQ(told.size(), 2U);
  EXPECT_EQ(told[0].tokens, 10U);
  EXPECT_EQ(told[1].tokens, 20U);
}

// Late numbers give the same results as numbers known at once, whichever of them are late.
TEST(Passes, NumbersThatComeLateMakeTheSame) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 200; ++round) {
    Passes now;
    Passes late;
    std::vector<double> come;
    const auto maybe_late = [&](double value) -> Number {
      if (random() % 2 == 0) return value;
      come.push_back(value);
      return Late{static_cast<std::uint32_t>(come.size() - 1)};
    };
    const double passes = static_cast<double>(1 + random() % 5);
    for (double i = 0; i < passes; ++i) {
      Pass pass{.root = 3.0 * i, .root_scale = 2.0};
      Pass other{.root = maybe_late(3.0 * i), .root_scale = maybe_late(2.0)};
      for (std::uint64_t f = 0; f < 1 + random() % 2; ++f) {
        const double tokens = static_cast<double>(1 + random() % 9);
        pass.forwards.push_back({.loss = 1.5 + i, .tokens = tokens, .share = tokens / 64});
        other.forwards.push_back({.loss = maybe_late(1.5 + i),
                                  .tokens = maybe_late(tokens),
                                  .share = maybe_late(tokens / 64)});
      }
      now.add(pass);
      late.add(other);
    }
    const auto expected = now.micro_batches({});
    const auto found = late.micro_batches(come);
    ASSERT_EQ(found.size(), expected.size());
    double a = 0;
    double b = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      a += found[i].loss * found[i].weight;
      b += expected[i].loss * expected[i].weight;
    }
    EXPECT_NEAR(a, b, 1e-12 * std::abs(b));
    EXPECT_NEAR(late.gradient_weight(come), now.gradient_weight({}), 1e-12);
  }
}

TEST(Passes, OfTooManyThatComeLateNoLossIsKnown) {
  Passes passes;
  for (std::size_t i = 0; i <= Passes::kLatePassesMax; ++i) {
    passes.add({.forwards = {{.loss = Late{0}}}});
  }
  const std::vector<double> come = {1};
  EXPECT_TRUE(passes.micro_batches(come).empty());
  EXPECT_TRUE(std::isnan(passes.gradient_weight(come)));
}

}  // namespace
}  // namespace presum::step
