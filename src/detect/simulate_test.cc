// SPDX-License-Identifier: Apache-2.0
#include "detect/simulate.h"

#include <gtest/gtest.h>

#include <cmath>

namespace presum::detect {
namespace {

const Progress kQuiet = [](double) {};

TEST(Generator, DependsOnTheSeedAlone) {
  Generator a({4, Null::kHeavy, 2}, 7);
  Generator b({4, Null::kHeavy, 2}, 7);
  Generator c({4, Null::kHeavy, 2}, 8);
  for (int s = 0; s < 20; ++s) {
    const StepRecord& x = a.next({});
    const StepRecord& y = b.next({});
    EXPECT_EQ(x.workers[3].loss, y.workers[3].loss);
    EXPECT_EQ(x.cosines, y.cosines);
    EXPECT_NE(x.workers[3].loss, c.next({}).workers[3].loss);
  }
}

class Shape : public ::testing::TestWithParam<Null> {};

TEST_P(Shape, LossIsTheMeanOfItsMicroBatchesAndCosinesFit) {
  Generator generator({5, GetParam(), 3}, 1);
  for (std::uint64_t s = 0; s < 50; ++s) {
    const StepRecord& r = generator.next({});
    EXPECT_EQ(r.step, s);
    for (const WorkerRecord& w : r.workers) {
      const double mean = (w.micro[0].loss + w.micro[1].loss + w.micro[2].loss) / 3;
      EXPECT_NEAR(w.loss, mean, 1e-9 * (1 + std::abs(mean)));
    }
    double first = 0;
    for (std::size_t j = 0; j < 4; ++j) first += double{r.cosines[j]} / 4;
    EXPECT_NEAR(r.workers[0].cosine_to_others, first, 1e-12);
  }
}

INSTANTIATE_TEST_SUITE_P(Nulls, Shape,
                         ::testing::Values(Null::kNormal, Null::kHeavy, Null::kCommon,
                                           Null::kPersistent));

double correlation_over_steps(Null null) {
  Generator generator({2, null, 1}, 3);
  double product = 0;
  double square = 0;
  double last = 0;
  for (int s = 0; s < 20000; ++s) {
    const double x = generator.next({}).workers[1].loss - 2;
    product += x * last;
    square += x * x;
    last = x;
  }
  return product / square;
}

TEST(Generator, PersistenceIsTheWorkersOwn) {
  EXPECT_NEAR(correlation_over_steps(Null::kNormal), 0, 0.03);
  EXPECT_NEAR(correlation_over_steps(Null::kPersistent), 0.5, 0.03);
}

TEST(Generator, ShiftsByStandardDeviations) {
  Generator generator({2, Null::kNormal, 4}, 3);
  double difference = 0;
  for (int s = 0; s < 20000; ++s) {
    const StepRecord& r = generator.next({Fault::Kind::kLoss, 2});
    difference += (r.workers[0].loss - r.workers[1].loss) / 20000;
  }
  EXPECT_NEAR(difference, 2 * 0.5, 0.02);
}

TEST(Generator, HeavyTailsHaveTheSameVarianceScale) {
  Generator generator({2, Null::kHeavy, 1}, 3);
  int inside = 0;
  for (int s = 0; s < 20000; ++s) {
    inside += std::abs(generator.next({}).workers[0].loss - 2) < 0.5 ? 1 : 0;
  }
  EXPECT_NEAR(inside / 20000.0, 0.818, 0.02);  // of t with 3 degrees of freedom within one sd
}

TEST(Rate, HasAnExactInterval) {
  EXPECT_NEAR(rate_of(0, 1'000'000).high, 3.689, 1e-3);
  EXPECT_EQ(rate_of(0, 1'000'000).low, 0);
  EXPECT_NEAR(rate_of(1, 1'000'000).low, 0.0253, 1e-4);
  EXPECT_NEAR(rate_of(1, 1'000'000).high, 5.572, 1e-3);
  EXPECT_NEAR(rate_of(10, 2'000'000).low, 4.795 / 2, 1e-3);
  EXPECT_NEAR(rate_of(10, 2'000'000).high, 18.390 / 2, 1e-3);
  EXPECT_EQ(rate_of(10, 2'000'000).per_million, 5);
  EXPECT_NEAR(rate_of(1549, 1'000'000).low, 1472.8, 1);
  EXPECT_NEAR(rate_of(1549, 1'000'000).high, 1628.1, 1);
}

TEST(FalseAlarms, AreDeterministicAndRare) {
  const FalseAlarms a = false_alarms({4, Null::kNormal, 2}, 3000, 1, kQuiet);
  EXPECT_EQ(a.steps, 3000);
  EXPECT_EQ(a.alarms.count, 0);
  EXPECT_EQ(a.events.count, 0);
}

TEST(Delays, CountWhatWasNotFound) {
  const Delays none = delays({4, Null::kNormal, 1}, {Fault::Kind::kLoss, 0}, 2, 1, kQuiet);
  EXPECT_EQ(none.found, 0);
  EXPECT_TRUE(std::isnan(none.median));
  EXPECT_TRUE(std::isnan(none.right));
  double last = 0;
  const Delays some =
      delays({4, Null::kNormal, 1}, {Fault::Kind::kLoss, 6}, 4, 1, [&](double done) {
        EXPECT_GT(done, last);
        last = done;
      });
  EXPECT_EQ(some.found, 4);
  EXPECT_EQ(last, 1);
}

}  // namespace
}  // namespace presum::detect
