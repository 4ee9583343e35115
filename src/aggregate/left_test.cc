// SPDX-License-Identifier: Apache-2.0
#include "aggregate/left.h"

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
    packet::MomentOf moment{.header = {.identity = {.replica = replica, .replicas = 2}}};
    moment.moment = {.kind = Moment::Kind::kBegun, .optimizer_steps = begun};
    ASSERT_TRUE(writer->add(moment));
    for (const double steps : saved) {
      moment.moment = {.kind = Moment::Kind::kSaved,
                       .step = static_cast<std::uint64_t>(steps - begun),
                       .optimizer_steps = steps};
      ASSERT_TRUE(writer->add(moment));
    }
  }
  ASSERT_TRUE(writer->close());
}

TEST(Left, OfNoRunNothingIsLeft) {
  TempFolder folder;
  const auto left = read_left(folder / "run");
  ASSERT_TRUE(left);
  EXPECT_TRUE(left->models.empty());
  EXPECT_EQ(left->steps, std::nullopt);
}

TEST(Left, WhatWasSavedLastStandsLast) {
  TempFolder folder;
  segment(folder / "run", 0, {10, 30, 20});
  segment(folder / "run", 30, {50, 40});
  const auto left = read_left(folder / "run");
  ASSERT_TRUE(left) << left.error().message;
  ASSERT_EQ(left->models.size(), 1U);
  const checks::Left& model = left->models.begin()->second.left;
  std::vector<double> steps;
  for (const MomentRecord& one : model.saved) {
    if (one.replica == 0) steps.push_back(one.optimizer_steps);
  }
  EXPECT_EQ(steps, (std::vector<double>{10, 20, 30, 40, 50}));
  EXPECT_EQ(model.saved.size(), 10U);
  EXPECT_EQ(model.begun, (std::map<std::uint32_t, double>{{1, 0}, {2, 30}}));
}

TEST(Left, OfASegmentTheLastEightAreKept) {
  TempFolder folder;
  segment(folder / "run", 0, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  const auto left = read_left(folder / "run");
  ASSERT_TRUE(left);
  ASSERT_EQ(left->models.begin()->second.left.saved.size(), 16U);
  EXPECT_EQ(left->models.begin()->second.left.saved.front().optimizer_steps, 3);
}

}  // namespace
}  // namespace presum::aggregate
