// SPDX-License-Identifier: Apache-2.0
#include "aggregate/prior_run.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/clock.h"
#include "packet/packet.h"
#include "runlog/testing.h"
#include "runlog/writer.h"

namespace presum::aggregate {
namespace {

using presum::testing::TempFolder;

void segment(const std::filesystem::path& run, double begun, const std::vector<double>& saved) {
  auto writer = runlog::open_writer(run, monotonic_now);
  ASSERT_TRUE(writer) << writer.error().message;
  for (std::uint32_t replica = 0; replica < 2; ++replica) {
    packet::SnapshotOf snapshot{.header = {.identity = {.replica = replica, .replicas = 2}}};
    snapshot.snapshot = {.kind = TrainingSnapshot::Kind::kBegun, .optimizer_steps = begun};
    ASSERT_TRUE(writer->add(snapshot));
    for (const double steps : saved) {
      snapshot.snapshot = {.kind = TrainingSnapshot::Kind::kSaved,
                           .step = static_cast<std::uint64_t>(steps - begun),
                           .optimizer_steps = steps};
      ASSERT_TRUE(writer->add(snapshot));
    }
  }
  ASSERT_TRUE(writer->close());
}

TEST(PriorRuns, OfNoRunNothingIsLeft) {
  TempFolder folder;
  const auto left = read_prior_runs(folder / "run");
  ASSERT_TRUE(left);
  EXPECT_TRUE(left->models.empty());
  EXPECT_EQ(left->steps, std::nullopt);
}

TEST(PriorRuns, WhatWasSavedLastStandsLast) {
  TempFolder folder;
  segment(folder / "run", 0, {10, 30, 20});
  segment(folder / "run", 30, {50, 40});
  const auto left = read_prior_runs(folder / "run");
  ASSERT_TRUE(left) << left.error().message;
  ASSERT_EQ(left->models.size(), 1U);
  const checks::PriorRun& model = left->models.begin()->second.prior;
  std::vector<double> steps;
  for (const SnapshotRecord& one : model.saved) {
    if (one.replica == 0) steps.push_back(one.optimizer_steps);
  }
  EXPECT_EQ(steps, (std::vector<double>{10, 20, 30, 40, 50}));
  EXPECT_EQ(model.saved.size(), 10U);
  EXPECT_EQ(model.begun, (std::map<std::uint32_t, double>{{1, 0}, {2, 30}}));
}

TEST(PriorRuns, OfASegmentTheLastEightAreKept) {
  TempFolder folder;
  segment(folder / "run", 0, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  const auto left = read_prior_runs(folder / "run");
  ASSERT_TRUE(left);
  ASSERT_EQ(left->models.begin()->second.prior.saved.size(), 16U);
  EXPECT_EQ(left->models.begin()->second.prior.saved.front().optimizer_steps, 3);
}

}  // namespace
}  // namespace presum::aggregate
