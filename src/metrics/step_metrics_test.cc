// SPDX-License-Identifier: Apache-2.0
#include "metrics/step_metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <tuple>
#include <variant>
#include <vector>

#include "metrics/testing.h"

namespace presum::metrics {
namespace {

using testing::Gradient;
using testing::Gradients;
using testing::measure;
using testing::random_gradients;
using testing::sent;
using testing::set_reduced;
using testing::step_of;
using testing::steps_of;
using testing::Truth;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr std::size_t kElements = 1024;

Gradient unit(std::size_t place, float value = 1) {
  Gradient g(64, 0.0F);
  g[place] = value;
  return g;
}

Gradient scaled(Gradient g, float factor) {
  for (float& x : g) x *= factor;
  return g;
}

void set_losses(std::vector<packet::Step>& steps, const std::vector<double>& losses) {
  for (std::size_t i = 0; i < steps.size(); ++i) steps[i].micro = {{losses[i], 1, 0}};
}

// ---- the three metrics

TEST(StepMetrics, LossDispersionIsThatOfTheOracle) {
  auto steps = steps_of(random_gradients(8, 1));
  std::mt19937_64 random(2);
  std::uniform_real_distribution<double> uniform(0.5, 4);
  std::vector<double> losses;
  for (std::size_t i = 0; i < 8; ++i) losses.push_back(uniform(random));
  set_losses(steps, losses);
  const StepRecord record = measure(steps);
  const auto want = testing::snapshots(losses);
  EXPECT_NEAR(record.loss_mean, want.mean, 1e-14);
  EXPECT_NEAR(record.loss_std, want.std, 1e-14);
  EXPECT_EQ(record.loss_range, want.range);
  EXPECT_EQ(record.workers[3].loss, losses[3]);
  EXPECT_FALSE(record.workers[3].loss_nonfinite);
}

TEST(StepMetrics, LossDispersionKeepsItsDigitsFarFromZero) {
  auto steps = steps_of(random_gradients(3, 1));
  set_losses(steps, {1e9, 1e9 + 1, 1e9 + 2});
  EXPECT_DOUBLE_EQ(measure(steps).loss_std, std::sqrt(2.0 / 3));
}

TEST(StepMetrics, NormDispersionIsThatOfTheOracle) {
  const Gradients gradients = random_gradients(8, 3);
  const Truth truth(gradients);
  std::vector<double> norms;
  for (std::size_t i = 0; i < 8; ++i) norms.push_back(truth.norm(i));
  const StepRecord record = measure(steps_of(gradients));
  const auto want = testing::snapshots(norms);
  EXPECT_NEAR(record.grad_norm_mean, want.mean, 1e-12);
  EXPECT_NEAR(record.grad_norm_std, want.std, 1e-12);
  EXPECT_NEAR(record.grad_norm_cv, want.std / want.mean, 1e-13);
  EXPECT_DOUBLE_EQ(record.workers[5].grad_norm, norms[5]);
}

TEST(StepMetrics, CosinesAreThoseOfTheOracle) {
  const Gradients gradients = random_gradients(6, 4);
  const Truth truth(gradients);
  const StepRecord record = measure(steps_of(gradients));
  EXPECT_EQ(record.cosine_source, CosineSource::kSketch);
  EXPECT_EQ(record.sketch_size, kElements);
  EXPECT_NEAR(record.cosine_mean, truth.cosine_mean(), 1e-12);
  EXPECT_LT(record.cosine_low, record.cosine_mean);
  EXPECT_GT(record.cosine_high, record.cosine_mean);
  ASSERT_EQ(record.cosines.size(), 15U);
  std::size_t at = 0;
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_NEAR(record.workers[i].cosine_to_others, truth.cosine_to_others(i), 1e-12);
    for (std::size_t j = i + 1; j < 6; ++j, ++at) {
      EXPECT_NEAR(static_cast<double>(record.cosines[at]), truth.cosine(i, j), 1e-7);
    }
  }
}

TEST(StepMetrics, WithoutPairwiseThereIsNoMatrixButTheRestStays) {
  const auto steps = steps_of(random_gradients(5, 5));
  const StepRecord with = measure(steps);
  const StepRecord without = measure(steps, 5, false);
  EXPECT_TRUE(without.cosines.empty());
  EXPECT_EQ(without.cosine_mean, with.cosine_mean);
  EXPECT_EQ(without.workers[2].cosine_to_others, with.workers[2].cosine_to_others);
}

TEST(StepMetrics, CopiesWhatThePacketsSay) {
  auto steps = steps_of(random_gradients(2, 6));
  for (packet::Step& step : steps) step.header.segment = 4;
  steps[1].optimizer_step = 11;
  steps[1].fingerprints = {{13, 5}, {2000, 6}};
  steps[1].samples = {.rows = 9, .thinned = 2, .hashes = {4, 8}};
  const StepRecord record = measure(steps);
  EXPECT_EQ(record.model.segment, 4U);
  EXPECT_EQ(record.step, 7U);
  EXPECT_EQ(record.workers_expected, 2U);
  const WorkerRecord& w = record.workers[1];
  EXPECT_EQ(w.rank, testing::kFirstRank + 1);
  EXPECT_EQ(w.replica, 1U);
  EXPECT_EQ(w.optimizer_step, 11U);
  EXPECT_EQ(w.grad_max, steps[1].total.max_abs);
  EXPECT_EQ(w.fingerprint, steps[1].total.fingerprint);
  EXPECT_TRUE(std::isnan(w.reduced_norm));
  EXPECT_EQ(w.reduced_fingerprint, 0U);
  ASSERT_NE(w.fingerprint_of(FingerprintKind::kSamplerRank), nullptr);
  EXPECT_EQ(*w.fingerprint_of(FingerprintKind::kSamplerRank), 5U);
  EXPECT_EQ(w.fingerprint_of(FingerprintKind::kMode), nullptr);
  EXPECT_EQ(w.samples.hashes, (std::vector<std::uint64_t>{4, 8}));
  EXPECT_EQ(record.workers[0].samples.rows, 0U);
}

// ---- losses that are not numbers, weights

TEST(StepMetrics, NonfiniteLossesAreLeftOutAndFlagged) {
  auto steps = steps_of(random_gradients(5, 7));
  set_losses(steps, {1, NAN, 3, kInf, 5});
  const StepRecord record = measure(steps);
  EXPECT_EQ(record.loss_mean, 3);
  EXPECT_DOUBLE_EQ(record.loss_std, std::sqrt(8.0 / 3));
  EXPECT_EQ(record.loss_range, 4);
  const std::vector<bool> want = {false, true, false, true, false};
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(record.workers[i].loss_nonfinite, want[i]) << i;
  EXPECT_EQ(record.workers[3].loss, kInf);
}

TEST(StepMetrics, AWorkerWithoutALossIsNotFlagged) {
  auto steps = steps_of(random_gradients(3, 8));
  set_losses(steps, {1, 2, 3});
  steps[1].micro.clear();
  const StepRecord record = measure(steps);
  EXPECT_TRUE(std::isnan(record.workers[1].loss));
  EXPECT_FALSE(record.workers[1].loss_nonfinite);
  EXPECT_EQ(record.loss_mean, 2);
  EXPECT_EQ(record.loss_std, 1);
}

TEST(StepMetrics, WorkerLossIsTheWeightedMeanOfItsMicroBatches) {
  auto steps = steps_of(random_gradients(1, 9));
  steps[0].micro = {{2, 1, 10}, {5, 3, 30}, {NAN, 0, 2}};
  const StepRecord record = measure(steps);
  const WorkerRecord& w = record.workers[0];
  EXPECT_DOUBLE_EQ(w.loss, (2 * 1 + 5 * 3) / 4.0);
  EXPECT_FALSE(w.loss_nonfinite);
  EXPECT_EQ(w.weight, 4);
  EXPECT_EQ(w.tokens, 42U);
  ASSERT_EQ(w.micro.size(), 3U);
  EXPECT_EQ(w.micro[1].loss, 5);
  EXPECT_EQ(w.micro[1].weight, 3);
  EXPECT_EQ(w.micro[1].tokens, 30U);
}

TEST(StepMetrics, AWeightThatAllTargetsShareSaysWhatThoseOfARankWeighTogether) {
  auto steps = steps_of(random_gradients(2, 9));
  steps[0].micro = {{2, 1, 0, 40, 0.0125}, {2, 1, 0, 5, 0.1}};
  steps[1].micro = {{2, 1, 0, 20, 0.02}};
  StepRecord record = measure(steps);
  EXPECT_DOUBLE_EQ(record.workers[0].token_weight, 1 / 45.0);
  EXPECT_EQ(record.workers[0].targets, 45U);
  EXPECT_EQ(record.workers[0].targets_sum, 1) << "a target weighs otherwise on rank 1";
  steps[1].micro = {{2, 1, 0, 20, 1 / 45.0}};
  record = measure(steps);
  EXPECT_DOUBLE_EQ(record.workers[0].targets_sum, 1);
  EXPECT_DOUBLE_EQ(record.workers[1].targets_sum, 20 / 45.0);
  steps[0].micro.push_back({2, 1, 0, 10, kNaN});
  EXPECT_TRUE(std::isnan(measure(steps).workers[0].token_weight));
}

// ---- gradients that are not numbers, or zero

TEST(StepMetrics, ANonfiniteGradientIsLeftOut) {
  Gradients gradients = random_gradients(4, 10);
  const Truth truth({gradients[0], gradients[1], gradients[3]});
  gradients[2][5] = NAN;
  auto steps = steps_of(gradients);
  set_reduced(steps, NAN);
  const StepRecord record = measure(steps);
  EXPECT_NEAR(record.cosine_mean, truth.cosine_mean(), 1e-12);
  const auto want = testing::snapshots({truth.norm(0), truth.norm(1), truth.norm(2)});
  EXPECT_NEAR(record.grad_norm_mean, want.mean, 1e-12);
  EXPECT_NEAR(record.grad_norm_std, want.std, 1e-12);
  EXPECT_EQ(record.workers[2].nonfinite, 1U);
  EXPECT_TRUE(std::isnan(record.workers[2].cosine_to_others));
  EXPECT_NEAR(record.workers[3].cosine_to_others, truth.cosine_to_others(2), 1e-12);
  EXPECT_TRUE(std::isnan(record.consistency));
  EXPECT_TRUE(std::isnan(record.effective_workers));
  EXPECT_TRUE(std::isnan(record.signal));
}

TEST(StepMetrics, ALeftOutWorkerKeepsItsPlaceInTheMatrix) {
  Gradients gradients = random_gradients(4, 11);
  const Truth truth(gradients);
  gradients[1][0] = std::numeric_limits<float>::infinity();
  const StepRecord record = measure(steps_of(gradients));
  ASSERT_EQ(record.cosines.size(), 6U);
  const auto at = [&](std::size_t place) { return static_cast<double>(record.cosines[place]); };
  EXPECT_TRUE(std::isnan(at(0)));  // 0,1
  EXPECT_NEAR(at(1), truth.cosine(0, 2), 1e-7);
  EXPECT_NEAR(at(2), truth.cosine(0, 3), 1e-7);
  EXPECT_TRUE(std::isnan(at(3)));  // 1,2
  EXPECT_TRUE(std::isnan(at(4)));  // 1,3
  EXPECT_NEAR(at(5), truth.cosine(2, 3), 1e-7);
}

TEST(StepMetrics, AZeroGradientHasNoDirectionButANorm) {
  Gradients gradients = random_gradients(4, 12);
  const Truth rest({gradients[1], gradients[2], gradients[3]});
  gradients[0] = Gradient(kElements, 0.0F);
  auto steps = steps_of(gradients);
  const StepRecord raw = measure(steps);
  EXPECT_NEAR(raw.cosine_mean, rest.cosine_mean(), 1e-12);
  EXPECT_TRUE(std::isnan(raw.workers[0].cosine_to_others));
  EXPECT_EQ(raw.distinct_gradients, 3U);
  EXPECT_NEAR(raw.grad_norm_mean, (rest.norm(0) + rest.norm(1) + rest.norm(2)) / 4, 1e-12);
  // The zero gradient adds nothing to the sum, so the reduced norm still corrects the others.
  set_reduced(steps, Truth(gradients).reduced_norm());
  const StepRecord corrected = measure(steps);
  EXPECT_EQ(corrected.cosine_source, CosineSource::kTotalNorm);
  EXPECT_NEAR(corrected.cosine_mean, rest.cosine_mean(), 1e-9);
}

TEST(StepMetrics, AWorkerWithoutAMicroBatchHasNoNormRatherThanZero) {
  auto steps = steps_of(random_gradients(3, 15));
  packet::Step& idle = steps[1];
  idle.micro_batches = 0;
  idle.elements = 0;
  idle.total = {};
  idle.sketch.assign(idle.sketch.size(), 0);
  const StepRecord record = measure(steps);
  EXPECT_TRUE(std::isnan(record.workers[1].grad_norm));
  EXPECT_EQ(record.distinct_gradients, 2U);
  EXPECT_EQ(record.workers_seen, record.workers_expected);
  EXPECT_TRUE(std::isnan(record.consistency));
  EXPECT_FALSE(record.reduced_disagrees);
}

TEST(StepMetrics, AWorkerWithoutASketchIsLeftOutOfTheCosines) {
  const Gradients gradients = random_gradients(3, 13);
  auto steps = steps_of(gradients);
  steps[2].sketch.clear();
  const StepRecord record = measure(steps);
  EXPECT_NEAR(record.cosine_mean, Truth({gradients[0], gradients[1]}).cosine_mean(), 1e-12);
  EXPECT_TRUE(std::isnan(record.workers[2].cosine_to_others));
  EXPECT_TRUE(std::isnan(record.effective_workers));
}

TEST(StepMetrics, NoSketchesGiveNoCosines) {
  auto steps = steps_of(random_gradients(3, 14));
  for (auto& s : steps) s.sketch.clear();
  const StepRecord record = measure(steps);
  EXPECT_EQ(record.cosine_source, CosineSource::kNone);
  EXPECT_TRUE(std::isnan(record.cosine_mean));
  EXPECT_TRUE(record.cosines.empty());
  EXPECT_EQ(record.sketch_size, 0U);
}

// ---- few ranks

TEST(StepMetrics, NoWorkerGivesNaNs) {
  const StepRecord record = measure({}, 3);
  EXPECT_EQ(record.workers_seen, 0U);
  EXPECT_TRUE(record.lacks_packets());
  for (const double value :
       {record.loss_mean, record.loss_std, record.loss_range, record.grad_norm_mean,
        record.grad_norm_std, record.grad_norm_cv, record.cosine_mean, record.cosine_low,
        record.cosine_high, record.consistency, record.reduced_norm, record.signal, record.noise,
        record.effective_workers, record.tokens_cv, record.mean_norm, record.mean_norm_error}) {
    EXPECT_TRUE(std::isnan(value));
  }
  EXPECT_EQ(record.cosine_source, CosineSource::kNone);
  EXPECT_EQ(record.distinct_gradients, 0U);
}

TEST(StepMetrics, OneWorkerHasNoDispersionAndNoCosine) {
  auto steps = steps_of(random_gradients(1, 15));
  set_losses(steps, {2});
  set_reduced(steps, std::sqrt(steps[0].total.sum_squares));
  const StepRecord record = measure(steps);
  EXPECT_EQ(record.loss_std, 0);
  EXPECT_EQ(record.loss_range, 0);
  EXPECT_EQ(record.grad_norm_std, 0);
  EXPECT_EQ(record.grad_norm_cv, 0);
  EXPECT_TRUE(std::isnan(record.cosine_mean));
  EXPECT_TRUE(std::isnan(record.consistency));
  EXPECT_TRUE(std::isnan(record.signal));
  EXPECT_TRUE(std::isnan(record.workers[0].cosine_to_others));
  EXPECT_FALSE(record.reduced_disagrees);
}

class TwoWorkers : public ::testing::TestWithParam<float> {};

TEST_P(TwoWorkers, AreExactWhereTheReducedNormIsKnown) {
  Gradients gradients = random_gradients(2, 16, 1.0, 4096);
  gradients[1] = scaled(gradients[1], GetParam());
  const Truth truth(gradients);
  auto steps = steps_of(gradients);
  // Slightly inaccurate sketches must not matter.
  steps[0].sketch = Gradient(gradients[0].begin(), gradients[0].begin() + 1024);
  steps[1].sketch = Gradient(gradients[1].begin(), gradients[1].begin() + 1024);
  set_reduced(steps, truth.reduced_norm());
  const StepRecord record = measure(steps);
  EXPECT_EQ(record.cosine_source, CosineSource::kExact);
  EXPECT_NEAR(record.cosine_mean, truth.cosine(0, 1), 1e-9);
  EXPECT_EQ(record.cosine_low, record.cosine_mean);
  EXPECT_EQ(record.cosine_high, record.cosine_mean);
  EXPECT_EQ(record.workers[0].cosine_to_others, record.cosine_mean);
  EXPECT_EQ(record.workers[1].cosine_to_others, record.cosine_mean);
  ASSERT_EQ(record.cosines.size(), 1U);
  EXPECT_NEAR(record.consistency, truth.cosine(0, 1), 1e-9);
  for (auto& s : steps) s.sketch.clear();
  const StepRecord without = measure(steps);
  EXPECT_EQ(without.cosine_source, CosineSource::kExact);
  EXPECT_EQ(without.cosine_mean, record.cosine_mean);
}

INSTANTIATE_TEST_SUITE_P(Scales, TwoWorkers, ::testing::Values(0.001F, 1.0F, 1000.0F));

TEST(StepMetrics, TwoWorkersWithoutTheReducedNormUseTheirSketches) {
  const Gradients gradients = random_gradients(2, 17);
  const StepRecord record = measure(steps_of(gradients));
  EXPECT_EQ(record.cosine_source, CosineSource::kSketch);
  EXPECT_NEAR(record.cosine_mean, Truth(gradients).cosine(0, 1), 1e-12);
}

// ---- special directions

TEST(StepMetrics, IdenticalGradientsAgreeExactly) {
  const Gradients gradients(8, random_gradients(1, 18)[0]);
  auto steps = steps_of(gradients);
  set_losses(steps, std::vector<double>(8, 0.1));
  for (const bool reduced : {false, true}) {
    if (reduced) set_reduced(steps, Truth(gradients).reduced_norm());
    const StepRecord record = measure(steps);
    EXPECT_EQ(record.loss_std, 0);
    EXPECT_EQ(record.loss_range, 0);
    EXPECT_EQ(record.grad_norm_std, 0);
    EXPECT_EQ(record.grad_norm_cv, 0);
    EXPECT_NEAR(record.cosine_mean, 1, 1e-12);
    EXPECT_NEAR(record.cosine_low, 1, 1e-9);
    EXPECT_LE(record.cosine_high, 1);
    EXPECT_NEAR(record.effective_workers, 1, 1e-12);
    EXPECT_NEAR(record.noise, 0, 1e-9);
    EXPECT_EQ(record.distinct_gradients, 1U);
    EXPECT_FALSE(record.reduced_disagrees);
  }
}

TEST(StepMetrics, GradientsThatCancelCountAsAllWorkers) {
  const Gradients gradients = {unit(0), unit(0, -1), unit(1, 2), unit(1, -2)};
  auto steps = steps_of(gradients);
  EXPECT_DOUBLE_EQ(measure(steps).effective_workers, 4);
  set_reduced(steps, 0);
  const StepRecord record = measure(steps);
  EXPECT_FALSE(record.reduced_disagrees);
  EXPECT_DOUBLE_EQ(record.effective_workers, 4);
  EXPECT_NEAR(record.cosine_mean, -2.0 / 6, 1e-12);
}

TEST(StepMetrics, SignalAndNoiseAreTheUnbiasedEstimates) {
  const Gradients gradients = random_gradients(5, 19);
  const Truth truth(gradients);
  auto steps = steps_of(gradients);
  set_reduced(steps, truth.reduced_norm());
  double squares = 0;
  for (std::size_t i = 0; i < 5; ++i) squares += truth.product(i, i) / 5;
  const double reduced = truth.reduced_norm() * truth.reduced_norm();
  for (const bool known : {true, false}) {
    if (!known) {
      for (auto& s : steps) s.reduced.reset();
    }
    const StepRecord record = measure(steps);
    EXPECT_NEAR(record.signal, (5 * reduced - squares) / 4, 1e-9 * squares);
    EXPECT_NEAR(record.noise, (squares - reduced) * 5 / 4, 1e-9 * squares);
    EXPECT_NEAR(record.effective_workers, std::min(5.0, squares / reduced), 1e-9);
    EXPECT_TRUE(std::isnan(record.noise_scale));
  }
}

// ---- the reduced gradient

TEST(StepMetrics, ConsistencyIsTheNormWeightedMeanCosine) {
  const Gradients gradients = random_gradients(7, 20);
  const Truth truth(gradients);
  auto steps = steps_of(gradients);
  EXPECT_TRUE(std::isnan(measure(steps).consistency));
  set_reduced(steps, truth.reduced_norm());
  const StepRecord record = measure(steps);
  EXPECT_NEAR(record.consistency, truth.consistency(), 1e-10);
  EXPECT_NEAR(record.reduced_norm, truth.reduced_norm(), 1e-12);
  EXPECT_EQ(record.workers[3].reduced_fingerprint, 99U);
  EXPECT_EQ(record.cosine_source, CosineSource::kTotalNorm);
  EXPECT_NEAR(record.cosine_mean, truth.cosine_mean(), 1e-9);
}

TEST(StepMetrics, WithoutSomeWorkersNothingExactIsClaimed) {
  Gradients gradients = random_gradients(5, 21);
  auto steps = steps_of(gradients);
  set_reduced(steps, Truth(gradients).reduced_norm());
  steps.erase(steps.begin() + 3);
  steps.erase(steps.begin() + 0);
  const StepRecord record = measure(steps, 5);
  EXPECT_EQ(record.workers_seen, 3U);
  EXPECT_EQ(record.workers_expected, 5U);
  ASSERT_EQ(record.workers.size(), 3U);
  EXPECT_EQ(record.workers[1].replica, 2U);
  EXPECT_TRUE(std::isnan(record.consistency));
  EXPECT_FALSE(record.reduced_disagrees);
  EXPECT_EQ(record.cosine_source, CosineSource::kSketch);
  const Truth rest({gradients[1], gradients[2], gradients[4]});
  EXPECT_NEAR(record.cosine_mean, rest.cosine_mean(), 1e-12);
}

// A "reduction" without effect: every rank holds rank 0's own gradient.
TEST(StepMetrics, ANormThatIsNotTheMeansDisagrees) {
  for (const std::size_t workers : {2U, 3U, 8U}) {
    const Gradients gradients(random_gradients(workers, 23, 0.7, 4096));
    const Truth truth(gradients);
    auto steps = steps_of(gradients);
    const StepRecord raw = measure(steps);
    set_reduced(steps, truth.norm(workers - 1));
    const StepRecord record = measure(steps);
    EXPECT_TRUE(record.reduced_disagrees) << workers;
    EXPECT_EQ(record.cosine_source, CosineSource::kSketch);
    EXPECT_EQ(record.cosine_mean, raw.cosine_mean);
    EXPECT_EQ(record.cosines, raw.cosines);
    EXPECT_EQ(record.effective_workers, raw.effective_workers);
    EXPECT_TRUE(std::isnan(record.consistency)) << "not that of these gradients";
  }
}

TEST(StepMetrics, ANormThatNoMeanCanHaveDisagreesWithoutSketchesToo) {
  for (const std::size_t workers : {2U, 4U}) {
    const Gradients gradients = random_gradients(workers, 24, 2.0);
    auto steps = steps_of(gradients);
    for (auto& s : steps) s.sketch.clear();
    // A sum that was never divided.
    set_reduced(steps, static_cast<double>(workers) * Truth(gradients).reduced_norm());
    const StepRecord record = measure(steps);
    EXPECT_TRUE(record.reduced_disagrees) << workers;
    EXPECT_TRUE(std::isnan(record.consistency));
    EXPECT_TRUE(std::isnan(record.effective_workers));
    EXPECT_EQ(record.cosine_source, CosineSource::kNone);
  }
}

TEST(StepMetrics, ARoundedReductionStillCounts) {
  const Gradients gradients = random_gradients(4, 25);
  auto steps = steps_of(gradients);
  // about the rounding of bf16
  set_reduced(steps, Truth(gradients).reduced_norm() * (1 + 1.0 / 256));
  const StepRecord record = measure(steps);
  EXPECT_FALSE(record.reduced_disagrees);
  EXPECT_EQ(record.cosine_source, CosineSource::kTotalNorm);
}

// ---- the norm of the mean gradient, from sketches alone

TEST(MeanNorm, IsThatOfTheMeanForExactSketches) {
  for (const std::size_t workers : {2U, 3U, 8U}) {
    const Gradients gradients = random_gradients(workers, 40 + workers);
    const double truth = Truth(gradients).reduced_norm();
    const StepRecord record = measure(steps_of(gradients));
    EXPECT_NEAR(record.mean_norm, truth, 1e-9 * truth);
    EXPECT_GT(record.mean_norm_error, 0);
  }
}

// A sum that was never divided, a reduction without effect, and a correct one: the mean of the
// contributions is the same.
TEST(MeanNorm, DoesNotDependOnTheReducedGradient) {
  for (const std::size_t workers : {2U, 4U}) {
    const Gradients gradients = random_gradients(workers, 50);
    const Truth truth(gradients);
    auto steps = steps_of(gradients);
    const StepRecord want = measure(steps);
    for (const double reduced : {truth.reduced_norm(), truth.norm(0), 0.0,
                                 static_cast<double>(workers) * truth.reduced_norm()}) {
      set_reduced(steps, reduced);
      const StepRecord record = measure(steps);
      EXPECT_EQ(record.mean_norm, want.mean_norm);
      EXPECT_EQ(record.mean_norm_error, want.mean_norm_error);
    }
  }
}

TEST(MeanNorm, CountsAZeroGradient) {
  Gradients gradients = random_gradients(4, 51);
  gradients[2].assign(kElements, 0.0F);
  const double truth = Truth(gradients).reduced_norm();
  EXPECT_NEAR(measure(steps_of(gradients)).mean_norm, truth, 1e-9 * truth);
}

TEST(MeanNorm, IsZeroWithoutAnErrorWhereGradientsCancel) {
  const StepRecord record = measure(steps_of({unit(0, 3), unit(0, -3)}));
  EXPECT_EQ(record.mean_norm, 0);
  EXPECT_TRUE(std::isnan(record.mean_norm_error));
}

TEST(MeanNorm, IsUnknownWhereAWorkerIsNotCounted) {
  const Gradients gradients = random_gradients(3, 52);
  const auto expect_unknown = [](const std::vector<packet::Step>& steps, std::uint32_t expected) {
    const StepRecord record = measure(steps, expected);
    EXPECT_TRUE(std::isnan(record.mean_norm));
    EXPECT_TRUE(std::isnan(record.mean_norm_error));
  };
  expect_unknown(steps_of({gradients[0]}), 1);
  expect_unknown(steps_of(gradients), 4);
  auto steps = steps_of(gradients);
  steps[1].sketch.clear();
  expect_unknown(steps, 3);
  Gradients broken = gradients;
  broken[1][0] = NAN;
  expect_unknown(steps_of(broken), 3);
  broken[1][0] = std::numeric_limits<float>::infinity();
  expect_unknown(steps_of(broken), 3);
  const Gradient zero(kElements, 0.0F);
  expect_unknown(steps_of({zero, zero}), 2);
  expect_unknown(steps_of({gradients[0], zero}), 2);
}

class MeanNormOfSketches : public ::testing::TestWithParam<std::tuple<std::size_t, double>> {};

TEST_P(MeanNormOfSketches, IsWithinItsError) {
  constexpr std::uint64_t kTrials = 300;
  const auto [workers, common] = GetParam();
  double squares = 0;
  double within = 0;
  for (std::uint64_t trial = 0; trial < kTrials; ++trial) {
    const Gradients gradients = random_gradients(workers, 1000 + trial, common, 4096);
    const StepRecord record = measure(sent(gradients, trial, 512));
    const double z = (record.mean_norm - Truth(gradients).reduced_norm()) / record.mean_norm_error;
    squares += z * z / kTrials;
    within += std::abs(z) <= 1.96 ? 1.0 / kTrials : 0;
  }
  EXPECT_GE(within, 0.92);
  EXPECT_GT(squares, 0.5) << "an error that is too large says nothing";
  EXPECT_LT(squares, 1.3);
}

INSTANTIATE_TEST_SUITE_P(Kinds, MeanNormOfSketches,
                         ::testing::Combine(::testing::Values(2U, 4U, 8U),
                                            ::testing::Values(0.0, 0.3, 2.0)));

// ---- tokens, groups

TEST(StepMetrics, TokensCvNeedsAllTokenCounts) {
  auto steps = steps_of(random_gradients(3, 26));
  for (std::size_t i = 0; i < 3; ++i) steps[i].micro = {{1, 1, 100 * (i + 1)}};
  EXPECT_NEAR(measure(steps).tokens_cv, std::sqrt(2.0 / 3) / 2, 1e-14);
  steps[1].micro[0].tokens = 0;
  EXPECT_TRUE(std::isnan(measure(steps).tokens_cv));
}

TEST(StepMetrics, GroupsAreMatchedByIdAndLeaveOutWhatIsNotFinite) {
  auto steps = steps_of(random_gradients(3, 27));
  steps[0].groups = {{5, {4, 1, 0, 0}}, {6, {1, 0.5, 0, 0}}};
  steps[1].groups = {{6, {9, 0.25, 0, 0}}, {5, {16, 3, 0, 0xABCDEF0112345678ULL}}};
  steps[2].groups = {{5, {NAN, 2, 7, 0}}};
  const StepRecord record = measure(steps);
  ASSERT_EQ(record.groups.size(), 2U);
  const GroupRecord& five = record.groups[0];
  EXPECT_EQ(five.id, 5U);
  EXPECT_EQ(five.norm_mean, 3);
  EXPECT_EQ(five.norm_std, 1);
  EXPECT_EQ(five.nonfinite, 7U);
  ASSERT_EQ(five.norms.size(), 3U);
  EXPECT_EQ(five.norms[1], 4.0F);
  EXPECT_TRUE(std::isnan(five.norms[2]));
  EXPECT_EQ(five.maxima, (std::vector<float>{1, 3, 2}));
  EXPECT_EQ(five.fingerprints, (std::vector<std::uint32_t>{0, 0x12345678U, 0}));
  const GroupRecord& six = record.groups[1];
  EXPECT_EQ(six.norm_mean, 2);
  EXPECT_EQ(six.norm_std, 1);
  EXPECT_TRUE(std::isnan(six.norms[2]));
  EXPECT_TRUE(std::isnan(six.maxima[2]));
}

}  // namespace
}  // namespace presum::metrics
