// SPDX-License-Identifier: Apache-2.0
#include "checks/gradient/other_sizes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <utility>

#include "checks/engine/testing.h"

namespace presum::checks {
namespace {

using detect::Alarm;
using detect::Statistic;

constexpr double kTimes = 4;  // rank 1's targets, by those of the others

struct FourRanks {
  double cosine = 1;  // rank 1's, by the others'
  bool weighted = true;
  std::uint64_t targets = 40;  // rank 1's; the others have 10
  std::uint64_t steps = 30;
  std::uint64_t changes = 1000;  // from this step on, the cosine is 0
  std::uint64_t weighted_until = 1000;
};

OtherSizes seen(const FourRanks& how) {
  OtherSizes out;
  const HealthyRun run({.workers = 4});
  for (std::uint64_t step = 0; step < how.steps; ++step) {
    StepRecord r = run.step(step);
    const bool weighted = how.weighted && step < how.weighted_until;
    for (WorkerRecord& w : r.workers) {
      const bool other = w.rank == 1;
      w.targets = other ? how.targets : 10;
      w.token_weight = weighted ? 0.1 : 1 / static_cast<double>(w.targets);
      w.weight = 1;
      w.cosine_to_others = other ? 0.1 * (step < how.changes ? how.cosine : 0) : 0.1;
    }
    out.see(r);
  }
  return out;
}

bool explains(const FourRanks& how, Statistic statistic, double ratio = kNaN, bool high = true) {
  Alarm alarm;
  alarm.statistic = statistic;
  alarm.replicas = {1};
  alarm.ratio = ratio;
  alarm.high = high;
  return seen(how).explain(alarm);
}

TEST(OtherSizes, ANormOfMoreTargetsIsShorterByUpToTheRootOfTheirNumber) {
  const double least = 1 / std::sqrt(kTimes);
  for (const double ratio : {least, 0.8, 1.0}) {
    EXPECT_TRUE(explains({}, Statistic::kNorm, ratio)) << ratio;
    EXPECT_TRUE(explains({}, Statistic::kGroupNorm, ratio)) << ratio;
  }
  for (const double ratio : {0.9 * least, 1.1, 2.0, kNaN}) {
    EXPECT_FALSE(explains({}, Statistic::kNorm, ratio)) << ratio;
  }
}

TEST(OtherSizes, ACosineOfMoreTargetsIsLargerByAsMuch) {
  for (const double ratio : {1.0, 1.5, 2.0}) {
    EXPECT_TRUE(explains({.cosine = ratio}, Statistic::kDirection)) << ratio;
    EXPECT_FALSE(explains({.cosine = ratio}, Statistic::kDirection, kNaN, false)) << ratio;
  }
  for (const double ratio : {-1.0, 0.5, 2.2}) {
    EXPECT_FALSE(explains({.cosine = ratio}, Statistic::kDirection)) << ratio;
  }
}

TEST(OtherSizes, WhatChangesIsNotExplainedByTheStepsBefore) {
  EXPECT_TRUE(explains({.cosine = 1.5, .steps = 500}, Statistic::kDirection));
  EXPECT_FALSE(explains({.cosine = 1.5, .steps = 500, .changes = 480}, Statistic::kDirection));
  EXPECT_FALSE(explains({.steps = 500, .weighted_until = 499}, Statistic::kNorm, 0.8));
}

TEST(OtherSizes, NothingElseIsExplained) {
  EXPECT_FALSE(explains({}, Statistic::kLoss, 0.8));
  EXPECT_FALSE(explains({}, Statistic::kPeak, 0.8));
  EXPECT_FALSE(explains({}, Statistic::kResidual, 0.8));
  EXPECT_FALSE(explains({.weighted = false}, Statistic::kNorm, 0.8));
  EXPECT_FALSE(explains({.targets = 11}, Statistic::kNorm, 1.0)) << "as many";
  EXPECT_FALSE(explains({.steps = 9}, Statistic::kNorm, 0.8)) << "not known yet";
}

}  // namespace
}  // namespace presum::checks
