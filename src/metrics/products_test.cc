// SPDX-License-Identifier: Apache-2.0
// Steps with known exact dot products of all pairs.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <utility>
#include <variant>
#include <vector>

#include "metrics/step_metrics.h"
#include "metrics/testing.h"

namespace presum::metrics {
namespace {

using testing::Gradient;
using testing::Gradients;
using testing::measure;
using testing::sent;
using testing::set_reduced;
using testing::Truth;
using Steps = std::vector<packet::Step>;

constexpr std::size_t kElements = 6000;

Gradients random_gradients(std::size_t workers, std::uint64_t seed) {
  return testing::random_gradients(workers, seed, 0.5, kElements);
}

// The share of rank `owner`, computed literally: the dot products of its piece of all gradients.
std::vector<double> share_of(const Gradients& g, std::size_t owner) {
  std::vector<double> out;
  for (std::size_t i = 0; i < g.size(); ++i) {
    for (std::size_t j = i; j < g.size(); ++j) {
      double sum = 0;
      for (std::size_t e = owner; e < g[0].size(); e += g.size()) {
        sum += static_cast<double>(g[i][e]) * static_cast<double>(g[j][e]);
      }
      out.push_back(sum);
    }
  }
  return out;
}

struct Observed {
  std::uint32_t sketch_size = 1024;
  double scale = 1;
};

// Uses real observers and packets, with the products that a reduction by presum adds.
Steps observe(const Gradients& g, const Observed& how = {}) {
  Steps steps = sent(g, 3, how.sketch_size, how.scale);
  for (std::size_t i = 0; i < g.size(); ++i) {
    steps[i].gram = share_of(g, i);
    for (double& product : steps[i].gram) product /= how.scale * how.scale;
  }
  return steps;
}

void expect_exact(const StepRecord& record, const Truth& truth, double tolerance) {
  const std::size_t w = truth.workers();
  EXPECT_NEAR(record.cosine_mean, truth.cosine_mean(), tolerance);
  ASSERT_EQ(record.cosines.size(), w * (w - 1) / 2);
  std::size_t at = 0;
  for (std::size_t i = 0; i < w; ++i) {
    EXPECT_NEAR(record.workers[i].cosine_to_others, truth.cosine_to_others(i), tolerance) << i;
    for (std::size_t j = i + 1; j < w; ++j, ++at) {
      EXPECT_NEAR(static_cast<double>(record.cosines[at]), truth.cosine(i, j), 1e-7 + tolerance);
    }
  }
}

TEST(GramMatrix, GivesAllCosinesExactly) {
  for (const std::size_t workers : {2U, 3U, 7U, 64U}) {
    const Gradients g = random_gradients(workers, 40 + workers);
    const Truth truth(g);
    for (const std::uint32_t sketch_size : {0U, 64U}) {
      const StepRecord r = measure(observe(g, {.sketch_size = sketch_size}));
      EXPECT_EQ(r.cosine_source, CosineSource::kGram);
      expect_exact(r, truth, 1e-12);
      EXPECT_EQ(r.cosine_low, r.cosine_mean);
      EXPECT_EQ(r.cosine_high, r.cosine_mean);
      EXPECT_NEAR(r.consistency, truth.consistency(), 1e-12);
      EXPECT_NEAR(r.mean_norm, truth.reduced_norm(), 1e-9 * truth.reduced_norm());
      EXPECT_EQ(r.mean_norm_error, 0);
      EXPECT_TRUE(std::isnan(r.reduced_norm)) << "what came out is not known";
      EXPECT_EQ(r.sketch_size, sketch_size);
      EXPECT_FALSE(r.reduced_disagrees);
      EXPECT_TRUE(std::isfinite(r.noise));
    }
  }
}

TEST(GramMatrix, NeedsNoPairsForTheRest) {
  const Gradients g = random_gradients(5, 50);
  const StepRecord r = measure(observe(g), 5, false);
  EXPECT_TRUE(r.cosines.empty());
  EXPECT_NEAR(r.cosine_mean, Truth(g).cosine_mean(), 1e-12);
  EXPECT_NEAR(r.workers[4].cosine_to_others, Truth(g).cosine_to_others(4), 1e-12);
}

TEST(GramMatrix, IsDividedByTheScale) {
  Gradients g = random_gradients(4, 51);
  const Truth truth(g);
  for (Gradient& worker : g) {
    for (float& x : worker) x *= 1024.0F;
  }
  const StepRecord r = measure(observe(g, {.scale = 1024}));
  EXPECT_EQ(r.cosine_source, CosineSource::kGram);
  EXPECT_NEAR(r.mean_norm, truth.reduced_norm(), 1e-9 * truth.reduced_norm());
}

TEST(GramMatrix, OfEqualGradientsIsOne) {
  const Gradients g(4, random_gradients(1, 52)[0]);
  Steps steps = observe(g);
  for (packet::Step& s : steps) {
    for (double& x : s.gram) x *= 1 + 5e-4;  // fewer bits than the norms
  }
  const StepRecord r = measure(steps);
  EXPECT_NEAR(r.cosine_mean, 1, 1e-15);
  EXPECT_LE(r.cosine_mean, 1);
  EXPECT_NEAR(r.effective_workers, 1, 1e-3);
}

TEST(GramMatrix, LeavesOutWorkersWithoutADirection) {
  for (const float bad :
       {0.0F, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Gradients g = random_gradients(5, 53);
    const Truth rest({g[0], g[2], g[3], g[4]});
    if (bad == 0) g[1].assign(kElements, 0.0F);
    if (bad != 0) g[1][100] = bad;
    const StepRecord r = measure(observe(g));
    EXPECT_EQ(r.cosine_source, CosineSource::kGram);
    EXPECT_NEAR(r.cosine_mean, rest.cosine_mean(), 1e-12);
    EXPECT_TRUE(std::isnan(r.workers[1].cosine_to_others));
    EXPECT_NEAR(r.workers[2].cosine_to_others, rest.cosine_to_others(1), 1e-12);
    EXPECT_TRUE(std::isnan(r.cosines[0]));
    EXPECT_NEAR(static_cast<double>(r.cosines[1]), rest.cosine(0, 1), 1e-7);
    EXPECT_TRUE(std::isnan(r.cosines[4]));
    EXPECT_EQ(std::isnan(r.consistency), bad != 0);
    EXPECT_EQ(std::isnan(r.mean_norm), bad != 0);
  }
}

TEST(GramMatrix, OfFewerThanTwoDirectionsGivesNone) {
  Gradients g = random_gradients(2, 54);
  g[0].assign(kElements, 0.0F);
  EXPECT_EQ(measure(observe(g)).cosine_source, CosineSource::kNone);
  const Gradients one = random_gradients(1, 54);
  EXPECT_EQ(measure(observe(one)).cosine_source, CosineSource::kNone);
}

TEST(GramMatrix, IsOnlyUsedWhole) {
  const Gradients g = random_gradients(4, 55);
  Steps steps = observe(g);
  EXPECT_EQ(measure({steps.begin(), steps.begin() + 3}, 4).cosine_source, CosineSource::kSketch);
  EXPECT_EQ(measure({steps.begin(), steps.begin() + 3}, 3).cosine_source, CosineSource::kSketch);
  steps[1].gram.clear();
  EXPECT_EQ(measure(steps).cosine_source, CosineSource::kSketch);
}

using Spoil = std::function<void(Steps&)>;

TEST(GramMatrix, ThatContradictsTheNormsIsDropped) {
  const Gradients g = random_gradients(4, 56);
  const Truth truth(g);
  const std::vector<Spoil> spoils = {
      [](Steps& s) { std::swap(s[1].gram[0], s[1].gram[9]); },
      [](Steps& s) { s[2].gram = s[1].gram; },
      [&](Steps& s) { s[0].gram[4] += 2e-3 * truth.product(1, 1); },
      [&](Steps& s) { s[0].gram[1] += 2.5 * truth.norm(0) * truth.norm(1); },
      [](Steps& s) { s[3].gram[3] = kNaN; },
      [](Steps& s) { s[3].gram[9] = kNaN; },
      [](Steps& s) { s[3].gram[3] = std::numeric_limits<double>::infinity(); },
      [](Steps& s) {
        for (double& x : s[3].gram) x = 0;
      },
  };
  for (const Spoil& spoil : spoils) {
    Steps steps = observe(g);
    spoil(steps);
    const StepRecord r = measure(steps);
    EXPECT_EQ(r.cosine_source, CosineSource::kSketch);
    EXPECT_GT(r.mean_norm_error, 0);
  }
}

TEST(GramMatrix, WithinItsToleranceIsKept) {
  const Gradients g = random_gradients(4, 57);
  Steps steps = observe(g);
  steps[0].gram[4] += 5e-4 * Truth(g).product(1, 1);
  EXPECT_EQ(measure(steps).cosine_source, CosineSource::kGram);
}

TEST(GramMatrix, SeesAReducedNormThatIsNotTheMeans) {
  const Gradients g = random_gradients(3, 59);
  Steps steps = observe(g, {.sketch_size = 0});
  set_reduced(steps, Truth(g).reduced_norm());
  EXPECT_FALSE(measure(steps).reduced_disagrees);
  set_reduced(steps, 1.2 * Truth(g).reduced_norm());
  const StepRecord r = measure(steps);
  EXPECT_TRUE(r.reduced_disagrees);
  EXPECT_EQ(r.cosine_source, CosineSource::kGram);
  EXPECT_NEAR(r.reduced_norm, 1.2 * Truth(g).reduced_norm(), 1e-9);
}

}  // namespace
}  // namespace presum::metrics
