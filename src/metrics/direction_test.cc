// SPDX-License-Identifier: Apache-2.0
#include "metrics/direction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "metrics/testing.h"

namespace presum::metrics {
namespace {

using testing::dot;
using testing::Gradient;
using testing::Gradients;
using testing::Truth;

// ---- algebra: the sketches are the gradients themselves

Directions directions_of(const Gradients& sketches, const std::vector<double>& norms) {
  Directions d;
  d.sketch_size = static_cast<std::uint32_t>(sketches[0].size());
  for (const Gradient& s : sketches) d.sketches.emplace_back(s);
  d.norms = norms;
  return d;
}

std::vector<double> norms_of(const Gradients& gradients) {
  std::vector<double> out;
  for (const Gradient& g : gradients) out.push_back(std::sqrt(dot(g, g)));
  return out;
}

// The sketches belong to other gradients than the norms and sums: the correction has to bridge the
// whole gap.
struct Mismatch {
  Gradients sketched = testing::random_gradients(5, 3, 0.5, 256);
  Gradients real = testing::random_gradients(5, 4, 0.5, 300);
  std::vector<double> norms = norms_of(real);
  Directions directions = directions_of(sketched, norms);
  std::vector<double> raw = pair_cosines(directions);

  double corrected_row(const CosineEstimate& estimate, std::size_t i) const {
    double sum = norms[i] * norms[i];
    std::size_t at = 0;
    for (std::size_t a = 0; a < 5; ++a) {
      for (std::size_t b = a + 1; b < 5; ++b, ++at) {
        if (a != i && b != i) continue;
        sum += norms[a] * norms[b] * estimate.corrected(a, b, raw[at]);
      }
    }
    return sum;
  }
};

TEST(CosineEstimate, CorrectingTheTotalReproducesItExactly) {
  const Mismatch m;
  CosineEstimate estimate(m.directions);
  const double exact = 123.5;
  estimate.correct_total(exact);
  double cross = 0;
  for (std::size_t i = 0; i < 5; ++i) {
    cross += m.corrected_row(estimate, i) - m.norms[i] * m.norms[i];
  }
  EXPECT_NEAR(cross, exact, 1e-9 * exact);
  EXPECT_NEAR(estimate.cross_sum(), exact, 1e-9 * exact);
}

TEST(CosineEstimate, MeanAndWorkersAgreeWithTheCorrectedPairs) {
  const Mismatch m;
  CosineEstimate estimate(m.directions);
  estimate.correct_total(123.5);
  std::vector<double> others(5);
  double mean = 0;
  std::size_t at = 0;
  for (std::size_t a = 0; a < 5; ++a) {
    for (std::size_t b = a + 1; b < 5; ++b, ++at) {
      const double c = estimate.corrected(a, b, m.raw[at]);
      others[a] += c / 4;
      others[b] += c / 4;
      mean += c / 10;
    }
  }
  EXPECT_NEAR(estimate.mean(), mean, 1e-12);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_NEAR(estimate.to_others()[i], others[i], 1e-12);
}

// ---- statistics: real sketches of synthetic gradients

constexpr std::uint32_t kWorkers = 8;
constexpr std::uint32_t kSketch = 4096;
constexpr std::size_t kElements = std::size_t{1} << 18;
constexpr std::size_t kWidth = 1024;  // of a matrix, in elements
constexpr std::size_t kPairs = std::size_t{kWorkers} * (kWorkers - 1) / 2;
constexpr int kDataSets = 10;
constexpr int kSteps = 60;  // per dataset; each has its own sketch seeds

enum class Data { kGaussian, kAligned, kHotColumns, kLognormal, kSharedSpikes, kOwnSpikes };

std::string data_name(Data data) {
  constexpr const char* kNames[] = {"Gaussian",  "Aligned",      "HotColumns",
                                    "Lognormal", "SharedSpikes", "OwnSpikes"};
  return kNames[static_cast<std::size_t>(data)];
}

using Random = std::mt19937_64;

std::vector<float> element_scales(Data data, Random& random) {
  std::vector<float> scales(kElements, 1.0F);
  if (data == Data::kLognormal) {
    std::lognormal_distribution<float> lognormal(0, 1);
    for (float& s : scales) s = lognormal(random);
  }
  if (data == Data::kHotColumns) {  // four columns hold 9/10 of the energy
    for (std::size_t e = 0; e < kElements; ++e) {
      if (e % kWidth % 251 == 7 && e % kWidth < 1000) scales[e] = 48.0F;
    }
  }
  return scales;
}

// Five elements, each with about an eighth of the gradient's energy.
void add_spikes(Gradient& g, Random& places, Random& signs) {
  for (int i = 0; i < 5; ++i) {
    const float height = 300.0F * (signs() % 4 == 0 ? -1.0F : 1.0F);
    g[places() % kElements] += height;
  }
}

Gradients make_gradients(Data data, std::uint64_t seed) {
  Random random(seed);
  std::normal_distribution<float> normal;
  const float share = data == Data::kAligned ? 1.2F : 0.25F;
  const auto scales = element_scales(data, random);
  Gradient common(kElements);
  for (float& x : common) x = share * normal(random);
  Gradients out;
  for (std::uint32_t i = 0; i < kWorkers; ++i) {
    Gradient g(kElements);
    const float size = 0.7F + 0.1F * static_cast<float>(i);
    for (std::size_t e = 0; e < kElements; ++e) {
      g[e] = size * scales[e] * (common[e] + normal(random));
    }
    Random places(data == Data::kOwnSpikes ? random() : seed + 1);
    if (data == Data::kSharedSpikes || data == Data::kOwnSpikes) add_spikes(g, places, random);
    out.push_back(std::move(g));
  }
  return out;
}

// Root mean square of the errors, and the coverage of the intervals.
class Score {
 public:
  void error(double e) {
    squares_ += e * e;
    ++errors_;
  }
  void interval(double low, double truth, double high) {
    covered_ += low <= truth && truth <= high;
    ++intervals_;
  }
  double rmse() const { return std::sqrt(squares_ / errors_); }
  double coverage() const { return covered_ / intervals_; }

 private:
  double squares_ = 0;
  double errors_ = 0;
  double covered_ = 0;
  double intervals_ = 0;
};

struct Scores {
  Score mean;
  Score pair;

  void add(const StepRecord& record, const Truth& truth) {
    mean.error(record.cosine_mean - truth.cosine_mean());
    mean.interval(record.cosine_low, truth.cosine_mean(), record.cosine_high);
    std::size_t at = 0;
    for (std::size_t i = 0; i < kWorkers; ++i) {
      for (std::size_t j = i + 1; j < kWorkers; ++j, ++at) {
        const auto cosine = static_cast<double>(record.cosines[at]);
        pair.error(cosine - truth.cosine(i, j));
        const double spike =
            std::max(spike_share(record.workers[i]), spike_share(record.workers[j]));
        const auto [low, high] = cosine_interval(cosine, spike);
        pair.interval(low, truth.cosine(i, j), high);
      }
    }
  }

  // docs/metrics.md, "Interval of one pair".
  static std::pair<double, double> cosine_interval(double cosine, double spike_share) {
    const double z = std::atanh(std::clamp(cosine, -1.0, 1.0));
    const double half = 1.96 / std::sqrt(double{kSketch}) * (1 + 8 * spike_share);
    return {std::tanh(z - half), std::tanh(z + half)};
  }
  static double spike_share(const WorkerRecord& w) {
    return w.grad_max * w.grad_max / (w.grad_norm * w.grad_norm);
  }
};

struct Measured {
  Scores raw;
  Scores total;
};

Measured measure_all(Data data) {
  Measured out;
  for (int d = 0; d < kDataSets; ++d) {
    const Gradients gradients = make_gradients(data, 1000 + static_cast<std::uint64_t>(d));
    const Truth truth(gradients);
    for (int s = 0; s < kSteps; ++s) {
      auto steps = testing::sent(gradients, static_cast<std::uint64_t>(d * kSteps + s), kSketch);
      out.raw.add(testing::measure(steps), truth);
      testing::set_reduced(steps, truth.reduced_norm());
      const StepRecord total = testing::measure(steps);
      EXPECT_EQ(total.cosine_source, CosineSource::kTotalNorm);
      out.total.add(total, truth);
    }
  }
  return out;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

class CosineStatistics : public ::testing::TestWithParam<Data> {
 protected:
  void SetUp() override {
    // Each takes half a minute; the tests above cover the same code under the sanitizers.
    if (kSanitized) GTEST_SKIP() << "measured in plain builds";
  }
};

// The targets of docs/metrics.md.
TEST_P(CosineStatistics, MeetTheirTargets) {
  const Data data = GetParam();
  const Measured measured = measure_all(data);
  EXPECT_LE(measured.raw.pair.rmse(), 1.2 / std::sqrt(kSketch));
  EXPECT_LE(measured.raw.mean.rmse(), 1e-2);
  EXPECT_LE(measured.total.mean.rmse(), 2e-3);
  for (const Scores* scores : {&measured.raw, &measured.total}) {
    EXPECT_GE(scores->mean.coverage(), 0.93);
    EXPECT_GE(scores->pair.coverage(), 0.93);
  }
}

INSTANTIATE_TEST_SUITE_P(Data, CosineStatistics,
                         ::testing::Values(Data::kGaussian, Data::kAligned, Data::kHotColumns,
                                           Data::kLognormal, Data::kSharedSpikes, Data::kOwnSpikes),
                         [](const auto& test) { return data_name(test.param); });

}  // namespace
}  // namespace presum::metrics
