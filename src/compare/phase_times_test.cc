// SPDX-License-Identifier: Apache-2.0
#include "compare/phase_times.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>

#include "compare/compare.h"
#include "compare/document.h"
#include "compare/testing.h"
#include "compare/wording.h"

namespace presum::compare {
namespace {

TEST(BatchMeans, MeanIsOfAllValues) {
  BatchMeans means;
  EXPECT_TRUE(std::isnan(means.mean()));
  for (int i = 0; i < 101; ++i) means.add(i);
  EXPECT_EQ(means.mean(), 50);
  EXPECT_EQ(means.rows(), 50U) << "of two values; the last one is in none";
}

TEST(BatchMeans, VarianceOfTheMeanIsThatOfIndependentValues) {
  BatchMeans means;
  for (const double x : {1.0, 2.0, 3.0, 4.0}) means.add(x);
  EXPECT_NEAR(means.variance_of_mean(), 5.0 / 3 / 4, 1e-15);
  EXPECT_TRUE(std::isnan(BatchMeans().variance_of_mean()));
}

// The share of 1,000 pairs of runs without a difference whose interval excludes 0.
template <class Next>
double wrong_share(int steps, Next&& next) {
  constexpr int kPairs = 1000;
  int wrong = 0;
  for (int pair = 0; pair < kPairs; ++pair) {
    BatchMeans a;
    BatchMeans b;
    for (int s = 0; s < steps; ++s) a.add(next());
    for (int s = 0; s < steps; ++s) b.add(next());
    wrong += difference_of(a, b).differs();
  }
  return wrong / static_cast<double>(kPairs);
}

TEST(TimeDifference, IntervalHolds95PercentForFewStepsAndForManyThatResembleTheirNeighbors) {
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  EXPECT_NEAR(wrong_share(8, [&] { return normal(random); }), 0.05, 0.025);
  double last = 0;
  const auto alike = [&] { return last = 0.9 * last + normal(random); };
  EXPECT_NEAR(wrong_share(4000, alike), 0.05, 0.035);
}

TEST(TimeDifference, FewStepsHaveNoInterval) {
  BatchMeans a;
  BatchMeans b;
  for (int s = 0; s < 7; ++s) {
    a.add(s);
    b.add(s + 1);
  }
  EXPECT_EQ(difference_of(a, b).b - difference_of(a, b).a, 1);
  EXPECT_TRUE(std::isnan(difference_of(a, b).low));
  EXPECT_FALSE(difference_of(a, b).differs());
}

// As recorded: the first step of a segment has no times. Phases vary from step to step.
void set_times(std::vector<StepRecord>& steps, double backward) {
  for (StepRecord& s : steps) {
    if (s.step == 0) continue;
    const double jitter = 1e-5 * static_cast<double>(s.step % 3);
    for (WorkerRecord& w : s.workers) {
      w.times.seconds = {0.001, 0.002, backward + jitter, 0.0005, 0.0005, 0.004};
    }
  }
}

TEST(PhaseTimes, AreComparedAndMakeNoRunsDifferent) {
  auto a = steps_of(40);
  auto b = steps_of(40);
  set_times(a, 0.006);
  set_times(b, 0.008);
  const auto c = compare_steps(a, b);
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
  const auto& times = c.models.at(0).times;
  ASSERT_TRUE(times);
  EXPECT_EQ(times->steps, 39U);
  EXPECT_NEAR(times->own.b - times->own.a, 0.002, 1e-9);
  EXPECT_TRUE(times->own.differs());
  EXPECT_TRUE(times->of(Phase::kBackward).differs());
  EXPECT_FALSE(times->of(Phase::kForward).differs());
  EXPECT_NEAR(times->of(Phase::kReduction).a, 0.004, 1e-12);
  const auto text = times_text(c.models[0]);
  EXPECT_TRUE(has(text, "10.01 ms in A, 12.01 ms in B (+20.0 %, 95% interval +")) << text;
  EXPECT_TRUE(has(text, "most of it in backward")) << text;
  const auto json = document(c)["models"][0]["times"];
  EXPECT_EQ(json["steps"], 39);
  EXPECT_EQ(json["text"], text);
  EXPECT_NEAR(json["phases"]["backward"]["difference"].get<double>(), 0.002, 1e-9);
}

TEST(PhaseTimes, OfFewStepsAreToldWithoutAnInterval) {
  auto a = steps_of(5);
  auto b = steps_of(5);
  set_times(a, 0.006);
  set_times(b, 0.008);
  const auto c = compare_steps(a, b);
  const auto text = times_text(c.models.at(0));
  EXPECT_TRUE(has(text, "(+20.0 %, too few steps to say how sure that is)")) << text;
  EXPECT_TRUE(document(c)["models"][0]["times"]["own"]["low"].is_null());
}

TEST(PhaseTimes, AreLeftOutWhereOneRunHasNone) {
  auto a = steps_of(12);
  set_times(a, 0.006);
  const auto c = compare_steps(a, steps_of(12));
  EXPECT_FALSE(c.models.at(0).times);
  EXPECT_EQ(times_text(c.models[0]), "");
  EXPECT_TRUE(document(c)["models"][0]["times"].is_null());
}

}  // namespace
}  // namespace presum::compare
