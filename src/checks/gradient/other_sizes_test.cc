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

struct Ranks4 {
  double norm = 1;    // rank 1's, by the others'
  double cosine = 1;  // the same
  bool weighted = true;
  std::uint64_t targets = 40;  // rank 1's; the others have 10
  std::uint64_t steps = 20;
};

OtherSizes seen(const Ranks4& how) {
  OtherSizes out;
  const HealthyRun run({.workers = 4});
  for (std::uint64_t step = 0; step < how.steps; ++step) {
    StepRecord r = run.step(step);
    for (WorkerRecord& w : r.workers) {
      const bool other = w.rank == 1;
      w.targets = other ? how.targets : 10;
      w.token_weight = how.weighted ? 0.1 : 1 / static_cast<double>(w.targets);
      w.weight = 1;
      w.grad_norm = other ? 2 * how.norm : 2;
      w.cosine_to_others = other ? 0.1 * how.cosine : 0.1;
    }
    out.see(r);
  }
  return out;
}

bool explains(const Ranks4& how, Statistic statistic, double ratio = kNaN) {
  Alarm alarm;
  alarm.statistic = statistic;
  alarm.replicas = {1};
  alarm.ratio = ratio;
  return seen(how).explain(alarm);
}

TEST(OtherSizes, ANormOfMoreTargetsIsShorterByUpToTheRootOfTheirNumber) {
  const double least = 1 / std::sqrt(kTimes);
  for (const double ratio : {least, 0.8, 1.0}) {
    EXPECT_TRUE(explains({}, Statistic::kNorm, ratio)) << ratio;
    EXPECT_TRUE(explains({}, Statistic::kGroupNorm, ratio)) << ratio;
    EXPECT_TRUE(explains({.norm = ratio}, Statistic::kResidual)) << ratio;
  }
  for (const double ratio : {0.9 * least, 1.1, 2.0}) {
    EXPECT_FALSE(explains({}, Statistic::kNorm, ratio)) << ratio;
    EXPECT_FALSE(explains({.norm = ratio}, Statistic::kResidual)) << ratio;
  }
}

TEST(OtherSizes, ACosineOfMoreTargetsIsLargerByAsMuch) {
  for (const double ratio : {1.0, 1.5, 2.0}) {
    EXPECT_TRUE(explains({.cosine = ratio}, Statistic::kDirection)) << ratio;
  }
  for (const double ratio : {-1.0, 0.5, 2.2}) {
    EXPECT_FALSE(explains({.cosine = ratio}, Statistic::kDirection)) << ratio;
  }
}

TEST(OtherSizes, NothingElseIsExplained) {
  EXPECT_FALSE(explains({}, Statistic::kLoss));
  EXPECT_FALSE(explains({}, Statistic::kPeak));
  EXPECT_FALSE(explains({.weighted = false}, Statistic::kNorm, 0.8));
  EXPECT_FALSE(explains({.targets = 11}, Statistic::kNorm, 1.0)) << "as many";
  EXPECT_FALSE(explains({.steps = 9}, Statistic::kNorm, 0.8)) << "not known yet";
}

}  // namespace
}  // namespace presum::checks
