// SPDX-License-Identifier: Apache-2.0
#include "metrics/reduced_gradient.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace presum::metrics {
namespace {

// Two orthogonal gradients with the norms 3 and 4: their sum has the norm 5.
class OrthogonalPair : public ::testing::Test {
 protected:
  OrthogonalPair() : record_(record_of({3, 4})) {}

  static StepRecord record_of(const std::vector<double>& norms) {
    StepRecord record;
    record.workers_expected = record.workers_seen = static_cast<std::uint32_t>(norms.size());
    for (const double norm : norms) record.workers.emplace_back().grad_norm = norm;
    return record;
  }
  void read(double reduced_norm) {
    for (WorkerRecord& w : record_.workers) {
      w.reduced_norm = reduced_norm;
      w.reduced_fingerprint = 9;
    }
  }
  ReducedGradient reduced() { return {record_.workers, sum_norms(record_)}; }

  StepRecord record_;
};

TEST_F(OrthogonalPair, SaysNothingWithoutAReduction) {
  const auto g = reduced();
  EXPECT_TRUE(std::isnan(g.norm()));
  EXPECT_FALSE(g.cross_sum());
  EXPECT_FALSE(g.contradicted());
}

TEST_F(OrthogonalPair, GivesTheCrossSumFromTheNorm) {
  read(2.5);
  const auto g = reduced();
  EXPECT_EQ(g.norm(), 2.5);
  EXPECT_EQ(g.cross_sum(), 0);
}

TEST_F(OrthogonalPair, IsContradictedByASumThatWasNotDivided) {
  read(5);
  const auto g = reduced();
  EXPECT_TRUE(g.contradicted());
  EXPECT_FALSE(g.cross_sum());
  EXPECT_EQ(g.norm(), 5) << "what was read stays";
}

TEST_F(OrthogonalPair, IsContradictedWhereWorkersHoldDifferentOnes) {
  read(2.5);
  record_.workers[1].reduced_fingerprint = 10;
  const auto g = reduced();
  EXPECT_TRUE(g.contradicted());
  EXPECT_TRUE(std::isnan(g.norm()));
}

TEST_F(OrthogonalPair, OfAnIncompleteStepHasANormOnly) {
  read(2.5);
  record_.workers_expected = 3;
  const auto g = reduced();
  EXPECT_EQ(g.norm(), 2.5);
  EXPECT_FALSE(g.cross_sum());
  EXPECT_FALSE(g.contradicted());
}

TEST(NormSums, AreCompleteWhereEveryNormIsKnown) {
  StepRecord record;
  EXPECT_FALSE(sum_norms(record).complete) << "no rank";
  record.workers_expected = record.workers_seen = 2;
  record.workers.resize(2);
  record.workers[0].grad_norm = 3;
  EXPECT_FALSE(sum_norms(record).complete) << "a norm that is not known";
  record.workers[1].grad_norm = 4;
  const NormSums norms = sum_norms(record);
  EXPECT_TRUE(norms.complete);
  EXPECT_EQ(norms.sum, 7);
  EXPECT_EQ(norms.squares, 25);
  EXPECT_EQ(norms.pair_weight(), 24);
}

}  // namespace
}  // namespace presum::metrics
