// SPDX-License-Identifier: Apache-2.0
#include "checks/engine/passes.h"

#include <gtest/gtest.h>

#include <vector>

#include "checks/engine/testing.h"

namespace presum::checks {
namespace {

// The pass that is over once all ranks have begun the next one.
std::vector<Pass> first_pass(const RunOptions& options, const Break& change = nothing) {
  const HealthyRun run(options);
  Passes passes;
  for (std::uint64_t s = 0; s <= run.steps_per_pass(); ++s) {
    StepRecord record = run.step(s);
    for (WorkerRecord& w : record.workers) {
      if (s == run.steps_per_pass()) set(w, Kind::kDataEnded, 1);
    }
    change(record);
    passes.see(record);
  }
  return passes.take_over();
}

TEST(Passes, APassIsWholeOnceAllHaveLeftIt) {
  const auto over = first_pass({.workers = 4, .rows = 4, .data = 160});
  ASSERT_EQ(over.size(), 1U);
  EXPECT_TRUE(over[0].whole() && over[0].indexed && over[0].all_workers && over[0].is_first);
  EXPECT_EQ(over[0].drawn.count(), 160U);
  EXPECT_EQ(over[0].ranks.size(), 4U);
}

TEST(Passes, AStepThatLacksAWorkerIsSaid) {
  const auto over = first_pass({.workers = 4, .rows = 4, .data = 160}, [](StepRecord& r) {
    if (r.step == 9) r.workers.pop_back();
  });
  ASSERT_EQ(over.size(), 1U);
  EXPECT_TRUE(over[0].gapless) << "the last of its batches, after which nothing is amiss";
  EXPECT_FALSE(over[0].all_workers);
}

TEST(Passes, OfMoreReadersThanAreFollowedNoPassIsGapless) {
  const auto over = first_pass({.workers = 4097, .rows = 1, .data = 8194});
  ASSERT_EQ(over.size(), 1U);
  EXPECT_FALSE(over[0].gapless);
}

}  // namespace
}  // namespace presum::checks
