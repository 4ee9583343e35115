// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "checks/engine/testing.h"

namespace presum::checks {
namespace {

using State = CheckRecord::State;

void step_optimizer(StepRecord& r) {
  for (WorkerRecord& w : r.workers) w.optimizer_step = r.step + 1;
}

// The values that all ranks, or one of them, report for each step from `first` on.
std::string title_of(Kind kind, std::uint64_t value, int rank = -1) {
  Watched w = played(12, [&](StepRecord& r) {
    step_optimizer(r);
    for (WorkerRecord& one : r.workers) {
      if (r.step >= 2 && (rank < 0 || static_cast<int>(one.rank) == rank)) set(one, kind, value);
    }
  });
  const RankList one = rank < 0 ? RankList{} : RankList{static_cast<std::uint32_t>(rank)};
  expect(
      w, "lost-gradients",
      {.ranks = one, .count = rank < 0 ? 8U : 1U, .severity = Severity::kWarning, .first_step = 2});
  return w.first().title;
}

bool says(const std::string& title, const char* what) {
  return title.find(what) != std::string::npos;
}

TEST(LostGradients, ATrainingThatUsesAllIsQuiet) {
  Watched w = played(60, [](StepRecord& r) {
    step_optimizer(r);
    for (WorkerRecord& one : r.workers) set(one, Kind::kGradChanged, 1.0);
  });
  EXPECT_TRUE(w.findings().empty());
  EXPECT_EQ(w.check("lost-gradients").state, State::kPassed);
  Watched none = played(10, [](WorkerRecord& one) { one.optimizer_step = 0; });
  EXPECT_EQ(none.check("lost-gradients").state, State::kNotPossible);
}

TEST(LostGradients, ProgramsThatReportGradientsThemselvesAreNotJudged) {
  Watched w;
  w.hello([](std::uint32_t) { return WorkerFacts{}; });
  w.play(0, 20, step_optimizer);
  for (const char* check : {"lost-gradients", "loss-mismatch", "input-mismatch"}) {
    EXPECT_EQ(w.check(check).state, State::kNotPossible) << check;
  }
}

TEST(LostGradients, WhatNothingClearsIsNamed) {
  EXPECT_TRUE(says(title_of(Kind::kLeftOver, 1), "added each step's gradient"));
  EXPECT_TRUE(says(title_of(Kind::kLeftOver, 1, 3), "Rank 3 added"));
}

TEST(LostGradients, WhatIsLostIsCounted) {
  const std::string cleared = title_of(Kind::kPassesCleared, 3);
  EXPECT_TRUE(says(cleared, "3 of 4 micro-batches")) << cleared;
  EXPECT_TRUE(says(cleared, "cleared"));
  const std::string detached = title_of(Kind::kForwardsDetached, 1);
  EXPECT_TRUE(says(detached, "1 of 2 micro-batches")) << detached;
  EXPECT_TRUE(says(detached, "no backward pass"));
  EXPECT_TRUE(says(title_of(Kind::kPassesCleared, 3, 5), "Rank 5"));
}

TEST(LostGradients, WhatChangesTheSumIsNamed) {
  const auto changed = [](double factor) {
    return title_of(Kind::kGradChanged, std::bit_cast<std::uint64_t>(factor));
  };
  EXPECT_TRUE(says(changed(std::nan("")), "overwrote"));
  EXPECT_TRUE(says(changed(0), "cleared"));
  EXPECT_TRUE(says(changed(0.25), "by 0.25")) << changed(0.25);
  EXPECT_TRUE(says(changed(0.25), "it was scaled"));
}

TEST(LostGradients, ClippingAndUnscalingAreToldFromScaling) {
  const auto title = [](double factor, bool clips, bool scaler) {
    Watched w;
    const WorkerFacts facts{"host", {{"fingerprints", "data"}, {"grad_scaler", "GradScaler"}}, {}};
    if (scaler) w.diagnoser.hello(who(0, 0), facts);
    w.play(0, 6, [&](StepRecord& r) {
      step_optimizer(r);
      for (WorkerRecord& one : r.workers) {
        set(one, Kind::kGradChanged, factor);
        if (clips) set(one, Kind::kClipNorm, 0.5);
      }
    });
    return w.first().title;
  };
  EXPECT_TRUE(says(title(0.3, true, false), "it was clipped"));
  EXPECT_TRUE(says(title(1.0 / 65536, true, true), "loss scaler"));
  EXPECT_TRUE(says(title(2, true, true), "it was scaled"));
}

TEST(LostGradients, ABatchThatIsLeftOutNowAndThenIsNoHabit) {
  expect_quiet(played(200, [](StepRecord& r) {
    step_optimizer(r);
    if (r.step % 7 == 0) set(r.workers[3], Kind::kPassesCleared, 1);
    if (r.step % 9 == 0) {
      for (WorkerRecord& one : r.workers) set(one, Kind::kForwardsDetached, 4);
    }
  }));
}

}  // namespace
}  // namespace presum::checks
