// SPDX-License-Identifier: Apache-2.0
#include "metrics/layer_reductions.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/hash.h"

namespace presum::metrics {
namespace {

using Gradient = std::vector<float>;
using Gradients = std::vector<Gradient>;
using Ranks = std::vector<std::uint32_t>;

constexpr std::size_t kElements = 5000;

// Gradients with a common part and a part of each rank.
Gradients gradients(std::size_t workers, double common) {
  std::mt19937_64 random(workers);
  std::normal_distribution<float> normal;
  Gradients out(workers, Gradient(kElements));
  for (std::size_t e = 0; e < kElements; ++e) {
    const float shared = normal(random) * static_cast<float>(common);
    for (Gradient& worker : out) worker[e] = shared + normal(random);
  }
  return out;
}

Gradient mean_of(const Gradients& all, const Ranks& ranks, double factor = 1) {
  Gradient out(kElements);
  for (std::size_t e = 0; e < kElements; ++e) {
    double sum = 0;
    for (const std::uint32_t rank : ranks) sum += static_cast<double>(all[rank][e]);
    out[e] = static_cast<float>(factor * sum / static_cast<double>(ranks.size()));
  }
  return out;
}

// The same gradients, one rank's multiplied by a factor.
Gradients weighing(Gradients all, std::uint32_t rank, double factor) {
  for (float& x : all[rank]) x *= static_cast<float>(factor);
  return all;
}

Ranks everyone(std::size_t workers) {
  Ranks out;
  for (std::uint32_t w = 0; w < workers; ++w) out.push_back(w);
  return out;
}

// A hash, and a sketch: any linear map with random signs works.
std::uint64_t sketch(const Gradient& of, std::array<float, packet::kLayerSketch>& into) {
  std::uint64_t hash = of.size();
  for (std::size_t e = 0; e < of.size(); ++e) {
    const std::uint64_t place = splitmix64(e);
    into[place % into.size()] += place >> 63 == 0 ? of[e] : -of[e];
    hash = mix64(hash ^ std::bit_cast<std::uint32_t>(of[e]));
  }
  return hash;
}

struct Step {
  std::vector<packet::Step> steps;

  std::vector<const packet::Step*> borrowed() const {
    std::vector<const packet::Step*> out;
    for (const packet::Step& step : steps) out.push_back(&step);
    return out;
  }
};

// Each rank holds its entry of `reduced`.
Step step_of(const Gradients& own, const Gradients& reduced) {
  Step out{std::vector<packet::Step>(own.size())};
  for (std::size_t w = 0; w < own.size(); ++w) {
    out.steps[w].header.identity.rank = static_cast<std::uint32_t>(w);
    out.steps[w].elements = own[w].size();
    packet::Layer layer{.id = 5, .elements = own[w].size(), .part = reduced[w].size()};
    sketch(own[w], layer.own);
    layer.fingerprint = sketch(reduced[w], layer.reduced);
    for (const float x : reduced[w])
      layer.squares += static_cast<double>(x) * static_cast<double>(x);
    layer.kept = own[w] == reduced[w];
    out.steps[w].layers.push_back(layer);
  }
  return out;
}

// Rank w holds part w modulo `shards` of its entry of `reduced`.
Step sharded(const Gradients& own, const Gradients& reduced, std::size_t shards) {
  Gradients held(own.size());
  std::vector<bool> kept(own.size());
  for (std::size_t w = 0; w < own.size(); ++w) {
    held[w] = reduced[w];
    bool same = true;
    for (std::size_t e = 0; e < held[w].size(); ++e) {
      const bool here = e * shards / held[w].size() == w % shards;
      if (here) same = same && held[w][e] == own[w][e];
      if (!here) held[w][e] = 0;
    }
    kept[w] = same;
  }
  Step out = step_of(own, held);
  for (std::size_t w = 0; w < own.size(); ++w) {
    packet::Layer& layer = out.steps[w].layers.front();
    layer.shard = static_cast<std::uint32_t>(1 + w % shards);
    layer.part = own[w].size() / shards;
    layer.kept = kept[w];
  }
  return out;
}

std::vector<LayerReduction> reductions(const Gradients& own, const Gradients& reduced) {
  return layer_reductions(step_of(own, reduced).borrowed());
}

LayerReduction reduction(const Gradients& own, const Gradients& reduced) {
  const auto all = reductions(own, reduced);
  EXPECT_EQ(all.size(), 1U);
  return all.empty() ? LayerReduction{} : all.front();
}

Gradients each(std::size_t workers, const Gradient& reduced) { return Gradients(workers, reduced); }

class OfWorkers : public testing::TestWithParam<std::tuple<std::size_t, double>> {
 protected:
  std::size_t workers() const { return std::get<0>(GetParam()); }
  Gradients own() const { return gradients(workers(), std::get<1>(GetParam())); }
};

TEST_P(OfWorkers, TheMeanIsTheMean) {
  const auto got = reduction(own(), each(workers(), mean_of(own(), everyone(workers()))));
  EXPECT_EQ(got.id, 5U);
  EXPECT_TRUE(got.alike);
  EXPECT_LT(got.off, 1e-5);
  EXPECT_NEAR(got.factor, 1, 1e-5);
  EXPECT_TRUE(got.kept_own.empty());
  EXPECT_TRUE(got.means_of.empty());
}

TEST_P(OfWorkers, AMultipleOfItHasItsFactor) {
  for (const double factor : {0.0, 1.0 / static_cast<double>(workers()), 3.0, -1.0}) {
    const auto got = reduction(own(), each(workers(), mean_of(own(), everyone(workers()), factor)));
    EXPECT_NEAR(got.factor, factor, 1e-5);
    EXPECT_LT(got.factor_off, 1e-5);
    EXPECT_GT(got.off, 0.1);
    EXPECT_TRUE(got.means_of.empty());
  }
}

TEST_P(OfWorkers, OfOneWithAnotherWeightRankAndWeightAreTold) {
  for (const double weight : {0.0, -1.0, 2.0, 0.5}) {
    Gradients weighed = own();
    for (float& x : weighed[1]) x *= static_cast<float>(weight);
    const Gradient sum = mean_of(weighed, everyone(workers()), 0.7);
    const auto got = reduction(own(), each(workers(), sum));
    ASSERT_EQ(got.weighed.size(), 1U) << weight;
    EXPECT_EQ(got.weighed.front().first, 1U);
    EXPECT_NEAR(got.weighed.front().second, weight, 1e-3);
    EXPECT_TRUE(got.means_of.empty());
  }
}

TEST_P(OfWorkers, GroupsThatReducedApart) {
  const auto half = static_cast<std::uint32_t>(workers() / 2);
  Ranks low;
  Ranks high;
  Gradients reduced(workers());
  for (const std::uint32_t w : everyone(workers())) (w < half ? low : high).push_back(w);
  for (const std::uint32_t w : low) reduced[w] = mean_of(own(), low);
  for (const std::uint32_t w : high) reduced[w] = mean_of(own(), high);
  const auto got = reduction(own(), reduced);
  EXPECT_FALSE(got.alike);
  EXPECT_TRUE(std::isnan(got.factor));
  EXPECT_EQ(got.means_of, (std::vector{low, high}));
}

TEST_P(OfWorkers, OwnOnesThatWereKept) {
  EXPECT_EQ(reduction(own(), own()).kept_own, everyone(workers()));
}

TEST_P(OfWorkers, SomethingElseFitsNothing) {
  const auto got = reduction(own(), each(workers(), gradients(workers() + 1, 1).back()));
  EXPECT_GT(got.off, 0.1);
  EXPECT_GT(got.factor_off, 0.1);
  EXPECT_TRUE(got.weighed.empty());
}

INSTANTIATE_TEST_SUITE_P(LayerReductions, OfWorkers,
                         testing::Combine(testing::Values(4U, 8U, 16U),
                                          testing::Values(0.0, 0.5, 1.0)));

TEST(LayerReductions, OfTwoTheOneThatAMeanWeighsOtherwiseIsTold) {
  const Gradients own = gradients(2, 0.5);
  for (const double weight : {0.0, -1.0, 2.0, 8.0}) {
    for (const std::uint32_t rank : {0U, 1U}) {
      const auto got = reduction(own, each(2, mean_of(weighing(own, rank, weight), {0, 1})));
      ASSERT_EQ(got.weighed.size(), 1U) << weight;
      EXPECT_EQ(got.weighed.front().first, rank);
      EXPECT_NEAR(got.weighed.front().second, weight, 1e-3);
      const auto scaled =
          reduction(own, each(2, mean_of(weighing(own, rank, weight), {0, 1}, 0.7)));
      EXPECT_TRUE(scaled.weighed.empty()) << "which of both it is cannot be told";
    }
  }
}

TEST(LayerReductions, OfTwoAShareOfAnotherSizeBlamesNobody) {
  for (const double common : {0.0, 0.5, 10.0}) {
    const Gradients own = gradients(2, common);
    for (const double weight : {0.3, 0.6, 1.0, 1.5}) {  // as if each rank clipped its own layer
      const auto got = reduction(own, each(2, mean_of(weighing(own, 1, weight), {0, 1})));
      EXPECT_TRUE(got.weighed.empty()) << weight;
    }
    for (const auto& [mean, told] : {std::pair{0.51, 1U}, {0.53, 0U}}) {
      const auto first = weighing(own, 0, 2 * mean);
      const auto got = reduction(own, each(2, mean_of(weighing(first, 1, 0), {0, 1})));
      EXPECT_EQ(got.weighed.size(), told) << mean;
    }
  }
}

TEST(LayerReductions, EqualGradientsWereNotKept) {
  const auto one = gradients(1, 1).front();
  EXPECT_TRUE(reduction(each(4, one), each(4, one)).kept_own.empty());
}

TEST(LayerReductions, RoundedSumsAreNear) {
  auto own = gradients(8, 0);
  Gradient sum = mean_of(own, everyone(8));
  for (float& x : sum) x *= 1 + 0.0039F * (std::bit_cast<std::uint32_t>(x) % 3 == 0 ? 1.0F : -1.0F);
  EXPECT_LT(reduction(own, each(8, sum)).off, 0.01);
}

TEST(LayerReductions, LeavesOutWhatIsNotFiniteOrZeroOrNotToldByAll) {
  const Gradient zero(kElements);
  EXPECT_TRUE(reductions(each(3, zero), each(3, zero)).empty());
  auto own = gradients(3, 1);
  own[1][7] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(reductions(own, each(3, zero)).empty());
  EXPECT_TRUE(reductions(gradients(1, 1), gradients(1, 1)).empty()) << "one rank";
  EXPECT_TRUE(layer_reductions({}).empty());
  packet::Step told;
  told.layers.push_back({.id = 1});
  const packet::Step silent;
  const std::vector<const packet::Step*> two{&told, &silent};
  EXPECT_TRUE(layer_reductions(two).empty());
}

class OfShards : public testing::TestWithParam<std::size_t> {
 protected:
  static constexpr std::size_t kWorkers = 8;
  std::size_t shards() const { return GetParam(); }
  Gradients own() const { return gradients(kWorkers, 0.5); }
  Gradient mean() const { return mean_of(own(), everyone(kWorkers)); }
  LayerReduction of(const Gradients& reduced) const {
    const auto all = layer_reductions(sharded(own(), reduced, shards()).borrowed());
    EXPECT_EQ(all.size(), 1U);
    return all.empty() ? LayerReduction{} : all.front();
  }
};

TEST_P(OfShards, PartsOfTheMeanAreTheMean) {
  const auto got = of(each(kWorkers, mean()));
  EXPECT_TRUE(got.alike);
  EXPECT_LT(got.off, 1e-5);
  EXPECT_TRUE(got.kept_own.empty());
}

TEST_P(OfShards, AMultipleAndALostPartAreTold) {
  EXPECT_NEAR(of(each(kWorkers, mean_of(own(), everyone(kWorkers), 8))).factor, 8, 1e-4);
  Gradients without = own();
  without[3].assign(without[3].size(), 0);
  const auto got = of(each(kWorkers, mean_of(without, everyone(kWorkers))));
  ASSERT_EQ(got.weighed.size(), 1U);
  EXPECT_EQ(got.weighed.front().first, 3U);
}

TEST_P(OfShards, PartsOfOwnOnesWereKept) { EXPECT_EQ(of(own()).kept_own, everyone(kWorkers)); }

TEST_P(OfShards, EveryoneGetsTheNormOfTheWhole) {
  const Gradient whole = mean();
  double squares = 0;
  for (const float x : whole) squares += static_cast<double>(x) * static_cast<double>(x);
  Step step = sharded(own(), each(kWorkers, whole), shards());
  std::vector<WorkerRecord> records(kWorkers);
  join_shards(step.borrowed(), records);
  for (const WorkerRecord& record : records) {
    EXPECT_NEAR(record.reduced_norm, std::sqrt(squares), 1e-6);
    EXPECT_EQ(record.reduced_fingerprint, records.front().reduced_fingerprint);
    EXPECT_NE(record.reduced_fingerprint, 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(LayerReductions, OfShards, testing::Values(2U, 4U, 8U));

TEST(LayerReductions, ReplicasOfShardsThatReducedApart) {
  const auto own = gradients(8, 0.5);
  const Ranks low{0, 1, 2, 3};
  const Ranks high{4, 5, 6, 7};
  Gradients reduced(8);
  for (const std::uint32_t w : low) reduced[w] = mean_of(own, low);
  for (const std::uint32_t w : high) reduced[w] = mean_of(own, high);
  const auto got = layer_reductions(sharded(own, reduced, 4).borrowed());
  ASSERT_EQ(got.size(), 1U);
  EXPECT_FALSE(got.front().alike);
  EXPECT_EQ(got.front().means_of, (std::vector{low, high}));
}

TEST(LayerReductions, OfPartsThatMakeNoWholeNothingIsSaid) {
  const auto own = gradients(4, 0.5);
  Step step = sharded(own, each(4, mean_of(own, everyone(4))), 4);
  step.steps[2].layers.front().shard = 2;
  std::vector<WorkerRecord> records(4);
  EXPECT_TRUE(layer_reductions(step.borrowed()).empty());
  join_shards(step.borrowed(), records);
  EXPECT_TRUE(std::isnan(records.front().reduced_norm));
  step = sharded(own, each(4, mean_of(own, everyone(4))), 4);
  step.steps[2].elements += 1;  // of another group, which was not reported
  join_shards(step.borrowed(), records);
  EXPECT_TRUE(std::isnan(records[2].reduced_norm));
  step = sharded(own, each(4, mean_of(own, everyone(4))), 4);
  step.steps[1].layers.front().squares = kNaN;
  records = std::vector<WorkerRecord>(4);
  join_shards(step.borrowed(), records);
  EXPECT_EQ(records[2].reduced_fingerprint, 0U) << "it was added to others";
}

TEST(LayerReductions, APartThatIsNotFiniteMakesTheNormSo) {
  const auto own = gradients(4, 0.5);
  Gradients reduced = each(4, mean_of(own, everyone(4)));
  for (Gradient& r : reduced) r[0] = std::numeric_limits<float>::infinity();
  const Step step = sharded(own, reduced, 4);
  std::vector<WorkerRecord> records(4);
  join_shards(step.borrowed(), records);
  for (const WorkerRecord& record : records) EXPECT_FALSE(std::isfinite(record.reduced_norm));
}

TEST(LayerReductions, WholeOnesKeepTheirNorms) {
  const auto own = gradients(3, 0.5);
  std::vector<WorkerRecord> records(3);
  records[1].reduced_norm = 7;
  join_shards(step_of(own, own).borrowed(), records);
  EXPECT_EQ(records[1].reduced_norm, 7);
}

}  // namespace
}  // namespace presum::metrics
