// SPDX-License-Identifier: Apache-2.0
#include "metrics/noise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "metrics/testing.h"

namespace presum::metrics {
namespace {

using testing::Gradient;
using testing::Gradients;
using testing::measure;
using testing::set_reduced;
using testing::steps_of;
using testing::Truth;

constexpr double kInf = std::numeric_limits<double>::infinity();

StepRecord noise_of(double cross_sum, const NormSums& norms) {
  StepRecord record;
  fill_noise(cross_sum, norms, record);
  return record;
}

TEST(Noise, OfOrthogonalGradientsIsAll) {
  const StepRecord record = noise_of(0, {.workers = 4, .sum = 4, .squares = 4, .complete = true});
  EXPECT_EQ(record.signal, 0);
  EXPECT_EQ(record.noise, 1);
  EXPECT_EQ(record.effective_workers, 4);
}

TEST(Noise, OfEqualGradientsIsNone) {
  const StepRecord record = noise_of(12, {.workers = 4, .sum = 4, .squares = 4, .complete = true});
  EXPECT_EQ(record.signal, 1);
  EXPECT_EQ(record.noise, 0);
  EXPECT_EQ(record.effective_workers, 1);
}

TEST(Noise, NeedsTwoWorkersAndAGradient) {
  const StepRecord one = noise_of(0, {.workers = 1, .sum = 1, .squares = 1, .complete = true});
  EXPECT_TRUE(std::isnan(one.signal));
  EXPECT_TRUE(std::isnan(one.noise));
  const StepRecord zero = noise_of(0, {.workers = 2, .sum = 0, .squares = 0, .complete = true});
  EXPECT_EQ(zero.noise, 0);
  EXPECT_TRUE(std::isnan(zero.effective_workers));
}

TEST(NoiseScale, ConvergesToNoiseOverSignal) {
  constexpr double kSignal = 2;  // |G|^2
  constexpr double kNoise = 12;  // tr(Sigma) of one rank's gradient
  constexpr std::size_t kDimensions = 128;
  std::mt19937_64 random(31);
  std::normal_distribution<double> normal(0, std::sqrt(kNoise / kDimensions));
  const double each = std::sqrt(kSignal / kDimensions);
  NoiseScale scale;
  double last = kNaN;
  for (int s = 0; s < 600; ++s) {
    Gradients gradients(8, Gradient(kDimensions));
    for (Gradient& g : gradients) {
      for (float& x : g) x = static_cast<float>(each + normal(random));
    }
    auto steps = steps_of(gradients);
    set_reduced(steps, Truth(gradients).reduced_norm());
    const StepRecord record = measure(steps);
    last = scale.update(record.signal, record.noise);
  }
  EXPECT_NEAR(last, kNoise / kSignal, 0.1 * kNoise / kSignal);
}

TEST(NoiseScale, IsUnbiasedFromTheFirstStep) {
  NoiseScale scale;
  EXPECT_DOUBLE_EQ(scale.update(2, 6), 3);
  EXPECT_DOUBLE_EQ(scale.update(2, 6), 3);
}

TEST(NoiseScale, AveragesSignalAndNoiseOnTheirOwn) {
  NoiseScale scale;
  scale.update(1, 10);
  const double ratio = scale.update(3, 10);
  EXPECT_GT(ratio, 4.9);  // 10 / 2, not the mean of 10 and 10/3
  EXPECT_LT(ratio, 5.1);
}

TEST(NoiseScale, IsUnknownWhereTheSignalIsNotPositive) {
  NoiseScale scale;
  EXPECT_TRUE(std::isnan(scale.update(-1, 4)));
  EXPECT_TRUE(std::isnan(scale.update(0, 4)));
  EXPECT_FALSE(std::isnan(scale.update(1000, 4)));
}

TEST(NoiseScale, SkipsWhatIsNotFinite) {
  NoiseScale scale;
  EXPECT_TRUE(std::isnan(scale.update(kNaN, 1)));
  EXPECT_DOUBLE_EQ(scale.update(1, 5), 5);
  EXPECT_DOUBLE_EQ(scale.update(kNaN, 1), 5);
  EXPECT_DOUBLE_EQ(scale.update(1, kInf), 5);
  EXPECT_DOUBLE_EQ(scale.update(kInf, 1), 5);
}

}  // namespace
}  // namespace presum::metrics
