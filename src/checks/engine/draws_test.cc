// SPDX-License-Identifier: Apache-2.0
#include "checks/engine/draws.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "checks/engine/testing.h"

namespace presum::checks {
namespace {

using Followed = Draws::Followed;

struct Feed {
  explicit Feed(RunOptions options) : run(options) {}
  const StepRecord& step(std::uint64_t step, const Break& change = nothing) {
    record = run.step(step);
    change(record);
    draws.see(record, batches(record));
    return record;
  }
  HealthyRun run;
  Draws draws;
  StepRecord record;
};

TEST(Draws, NothingComesAgainInAPassOfASamplerThatDividesTheData) {
  Feed feed({.workers = 4, .rows = 4, .data = 256});
  for (std::uint64_t s = 0; s < feed.run.steps_per_pass(); ++s) {
    feed.step(s);
    EXPECT_TRUE(feed.draws.again().empty()) << s;
    for (const Followed followed : feed.draws.followed()) EXPECT_EQ(followed, Followed::kYes);
  }
  ASSERT_EQ(feed.draws.passes().size(), 1U);
  EXPECT_EQ(feed.draws.passes().front().drawn, 256U);
  EXPECT_EQ(feed.draws.passes().front().identity, DrawnPass::Identity::kIndex);
}

// Compares with a map of all draws, for ranks that draw at random.
TEST(Draws, SaysWhoDrewASampleFirst) {
  Feed feed({.workers = 3, .rows = 5, .data = 4096});
  std::mt19937_64 random(1);
  std::unordered_map<std::uint64_t, std::pair<std::uint32_t, std::uint64_t>> first;
  std::size_t doubled = 0;
  for (std::uint64_t s = 0; s < 60; ++s) {
    feed.step(s, [&](WorkerRecord& w) {
      std::vector<std::uint64_t> indices(5);
      for (auto& index : indices) index = random() % 200;
      HealthyRun::read(w, indices);
    });
    std::size_t at = 0;
    for (const WorkerRecord& w : feed.record.workers) {
      for (const std::uint64_t index : w.indices) {
        const auto [drawn, fresh] = first.try_emplace(index, w.rank, s);
        if (fresh) continue;
        ASSERT_LT(at, feed.draws.again().size());
        const DrawnAgain& again = feed.draws.again()[at++];
        EXPECT_EQ(again.rank, w.rank);
        EXPECT_EQ(again.step, s);
        EXPECT_EQ(again.first_rank, drawn->second.first);
        EXPECT_EQ(again.first_step, drawn->second.second);
        EXPECT_TRUE(again.in_pass && again.same_index && again.row == again.first_row);
        ++doubled;
      }
    }
    EXPECT_EQ(at, feed.draws.again().size());
  }
  EXPECT_GT(doubled, 100U);
}

TEST(Draws, TheNextPassComesAfterTheOneBefore) {
  Feed feed({.workers = 2, .rows = 4, .data = 64});
  const std::uint64_t steps = feed.run.steps_per_pass();
  for (std::uint64_t s = 0; s < steps; ++s) feed.step(s);
  feed.step(steps);
  EXPECT_EQ(feed.draws.again().size(), 8U);
  for (const DrawnAgain& again : feed.draws.again()) {
    EXPECT_FALSE(again.in_pass);
    EXPECT_EQ(again.row, again.first_row);
  }
  EXPECT_EQ(feed.draws.passes().size(), 2U);
}

// Each rank reads its own part again and again, within a single pass of its loader.
TEST(Draws, APassThatNothingDividesEndsOnceAllOfTheDataWereDrawn) {
  const auto played = [](std::uint32_t shares) {
    Feed feed({.workers = 2, .rows = 4, .data = 64});
    std::size_t again = 0;
    for (std::uint64_t s = 0; s < 40; ++s) {
      feed.step(s, [&](WorkerRecord& w) {
        std::vector<std::uint64_t> indices(4);
        for (std::uint64_t i = 0; i < 4; ++i) {
          indices[i] = (4 * s + i) % 32 + 32 * (w.rank % shares);
        }
        HealthyRun::read(w, indices);
        set(w, Kind::kDataPass, 0);
        set(w, Kind::kDataBatch, s);
        for (const Kind kind : {Kind::kSamplerReplicas, Kind::kSamplerLength}) unset(w, kind);
      });
      again += feed.draws.again().size();
    }
    return again;
  };
  EXPECT_EQ(played(2), 0U);
  EXPECT_GT(played(1), 100U) << "all ranks draw the first part";
}

TEST(Draws, OfManySamplesSomeAreFollowedByTheirHash) {
  Feed feed({.workers = 1, .rows = 4000, .data = std::uint64_t{1} << 20});
  for (std::uint64_t s = 0; s < 100; ++s) {
    feed.step(s, [&](WorkerRecord& w) {
      std::vector<std::uint64_t> indices(4000);
      for (std::uint64_t i = 0; i < 4000; ++i) indices[i] = 4000 * s + i;
      HealthyRun::read(w, indices);
    });
  }
  const DrawnPass pass = feed.draws.passes().front();
  EXPECT_EQ(pass.bits, 1U) << "400,000 samples, of which 262,144 are kept";
  EXPECT_EQ(pass.drawn, 400000U);
}

TEST(Draws, ChangedRowsAreFollowedByTheirHashOnceThreeCameAgain) {
  Feed feed({.workers = 1, .rows = 4, .data = 64});
  for (std::uint64_t s = 0; s < 3; ++s) {
    feed.step(s, [&](WorkerRecord& w) {
      HealthyRun::read(w, {10 * s, 10 * s + 1, s == 0 ? 2 : 3 * s - 3, s == 0 ? 3 : 3 * s - 2});
      w.indices.clear();
      set(w, Kind::kRowsChanged, 4);
    });
    EXPECT_EQ(feed.draws.followed().front(), s < 2 ? Followed::kChanged : Followed::kYes) << s;
  }
}

// Padding in every batch, and a batch that is used twice in its step.
TEST(Draws, ChangedRowsThatComeAgainWithoutBeingDrawnAgainTellNothing) {
  Feed feed({.workers = 1, .rows = 8, .data = 256});
  for (std::uint64_t s = 0; s < 9; ++s) {
    feed.step(s, [&](WorkerRecord& w) {
      const std::uint64_t at = 3 * s + 1;
      HealthyRun::read(w, {0, 0, at, at + 1, at + 2, at, at + 1, at + 2});
      w.indices.clear();
      set(w, Kind::kRowsChanged, 8);
    });
    EXPECT_EQ(feed.draws.followed().front(), Followed::kChanged) << s;
  }
}

TEST(Draws, ChangedRowsWithIndicesAreFollowedByIndex) {
  Feed feed({.workers = 2, .rows = 4, .data = 64});
  feed.step(0, [](WorkerRecord& w) { set(w, Kind::kRowsChanged, 4); });
  EXPECT_EQ(feed.draws.followed().front(), Followed::kYes);
}

TEST(Draws, WhatIsNotKnownIsNotFollowed) {
  Feed feed({.workers = 2});
  feed.step(0, [](WorkerRecord& w) { unset(w, Kind::kDataPass); });
  EXPECT_EQ(feed.draws.followed().front(), Followed::kNoLoader);
  feed.step(1, [](StepRecord& r) { drop_fingerprints(r); });
  EXPECT_EQ(feed.draws.followed().front(), Followed::kNoSamples);
  EXPECT_TRUE(feed.draws.passes().empty());
}

}  // namespace
}  // namespace presum::checks
