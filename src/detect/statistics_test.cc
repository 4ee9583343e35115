// SPDX-License-Identifier: Apache-2.0
#include "detect/statistics.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace presum::detect {
namespace {

StepRecord record_of(const std::vector<double>& norms) {
  StepRecord record;
  GroupRecord group;
  for (const double norm : norms) {
    WorkerRecord worker;
    worker.replica = static_cast<std::uint32_t>(record.workers.size());
    worker.grad_norm = norm;
    record.workers.push_back(worker);
    group.norms.push_back(static_cast<float>(norm / 2));
  }
  record.groups.push_back(group);
  return record;
}

void set_weight(WorkerRecord& worker, double weight) {
  worker.fingerprints.push_back(
      {.kind = static_cast<std::uint32_t>(FingerprintKind::kGradientWeight),
       .value = std::bit_cast<std::uint64_t>(weight)});
}

std::vector<double> norms(const StepRecord& record) {
  Statistics statistics;
  statistics.fill(record, record.workers.size(), std::vector<bool>(record.workers.size()));
  return statistics.norm;
}

std::vector<double> group_norms(const StepRecord& record) {
  std::vector<double> out(record.workers.size());
  fill_group(record, record.groups[0], out);
  return out;
}

TEST(GradientWeight, IsTakenOutOfNorms) {
  StepRecord record = record_of({3, 0.75, 6});
  set_weight(record.workers[1], 0.25);
  set_weight(record.workers[2], 2);
  for (const double norm : norms(record)) EXPECT_NEAR(norm, std::log(3), 1e-12);
  for (const double norm : group_norms(record)) EXPECT_NEAR(norm, std::log(1.5), 1e-7);
}

TEST(TargetsSum, IsTakenOutOfNormsAndDifferentiatedLosses) {
  for (const bool differentiated : {false, true}) {
    StepRecord record = record_of({3, 0.75});
    for (WorkerRecord& w : record.workers) {
      w.targets_sum = w.replica == 0 ? 1 : 0.25;
      w.loss = differentiated ? 2 * w.targets_sum : 2;
      w.tokens = 10;
      w.micro = {{.loss = w.loss,
                  .targets = 10,
                  .token_weight = w.targets_sum / 10,
                  .differentiated = differentiated}};
    }
    Statistics statistics;
    statistics.fill(record, 2, std::vector<bool>(2));
    for (const double norm : statistics.norm) EXPECT_NEAR(norm, std::log(3), 1e-12);
    for (const double loss : statistics.loss) EXPECT_NEAR(loss, 2, 1e-12);
    for (const auto& losses : statistics.micro) EXPECT_NEAR(losses.at(0), 2, 1e-12);
    EXPECT_EQ(statistics.tokens[1], std::log(10));
  }
}

TEST(MicroBatches, ThatArePartsOfOneLossAreNotCompared) {
  StepRecord record = record_of({3, 3});
  for (WorkerRecord& w : record.workers) w.micro = {{.loss = 1}, {.loss = 2}};
  Statistics statistics;
  statistics.fill(record, 2, {false, false});
  EXPECT_EQ(statistics.closest[0], 1);
  record.workers[0].fingerprints.push_back(
      {.kind = static_cast<std::uint32_t>(FingerprintKind::kBackwardOrder), .value = 1});
  statistics.fill(record, 2, {false, false});
  EXPECT_TRUE(std::isnan(statistics.closest[0]) && std::isnan(statistics.closest[1]));
}

TEST(MicroBatches, OnesWithoutTargetsAreNotComparedWithTheOthers) {
  StepRecord record = record_of({3, 3});
  for (WorkerRecord& w : record.workers) {
    w.micro = {{.loss = 1, .targets = 5}, {.loss = 2, .targets = 7}, {.loss = 0.01}};
  }
  Statistics statistics;
  statistics.fill(record, 2, {false, false});
  EXPECT_EQ(statistics.micro[0], (std::vector<double>{1, 2}));
  for (WorkerRecord& w : record.workers) w.micro = {{.loss = 1}, {.loss = 2}};
  statistics.fill(record, 2, {false, false});
  EXPECT_EQ(statistics.micro[0], (std::vector<double>{1, 2}));
}

TEST(GradientWeight, ThatIsNotAWeightChangesNothing) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const double weight : {0.0, -1.0, kNaN, kInf, -kInf}) {
    StepRecord record = record_of({3});
    set_weight(record.workers[0], weight);
    EXPECT_EQ(norms(record)[0], std::log(3.0)) << weight;
    EXPECT_NEAR(group_norms(record)[0], std::log(1.5), 1e-7) << weight;
  }
}

TEST(GradientWeight, BelongsToItsWorkerWhereOthersAreMissing) {
  StepRecord record = record_of({3, 0.75});
  set_weight(record.workers[1], 0.25);
  record.workers[1].replica = 3;
  Statistics statistics;
  statistics.fill(record, 4, std::vector<bool>(4));
  EXPECT_NEAR(statistics.norm[3], std::log(3), 1e-12);
  EXPECT_TRUE(std::isnan(statistics.norm[1]));
}

TEST(GradientWeight, LeavesAZeroNormAtMinusInfinity) {
  StepRecord record = record_of({0});
  set_weight(record.workers[0], 0.5);
  EXPECT_EQ(norms(record)[0], -std::numeric_limits<double>::infinity());
}

TEST(PracticallyZero, IsAGroupThatRoundingAloneMakesOnEveryWorker) {
  StepRecord record = record_of({4, 4, 4});
  const auto zero = [&](float a, float b, float c) {
    record.groups[0].norms = {a, b, c};
    return practically_zero(record, record.groups[0]);
  };
  EXPECT_TRUE(zero(1e-8F, 3e-8F, 0));
  EXPECT_FALSE(zero(1e-8F, 1e-8F, 1e-3F)) << "one rank alone has a gradient there";
  EXPECT_FALSE(zero(1e-3F, 1e-3F, 0)) << "one rank alone lacks it";
  EXPECT_FALSE(zero(1e-8F, std::numeric_limits<float>::quiet_NaN(), 0));
}

}  // namespace
}  // namespace presum::detect
