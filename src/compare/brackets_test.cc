// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <vector>

#include "compare/compare.h"
#include "compare/testing.h"
#include "compare/wording.h"

namespace presum::compare {
namespace {

using Step = std::optional<std::uint64_t>;

TEST(Brackets, OfAParameterBeginWhenItWasLastSeenEqual) {
  const auto c = changed_late();
  expect_first(c, Stage::kParameters, 27, {10, 11, 12});
  const ModelComparison& m = *c.first();
  EXPECT_EQ(first(c).last_seen, 2U);
  EXPECT_EQ(m.last_identical, 2U);
  EXPECT_TRUE(bracket_text(m).starts_with("they differ since one of the steps 3 to 27"))
      << bracket_text(m);
  EXPECT_TRUE(has(bracket_text(m), "last seen equal at step 2"));
}

TEST(Brackets, OfParametersAfterTheLastStep) {
  const TempFolder folder;
  const auto write = [&](const char* name, bool other) {
    auto steps = steps_hashed_in_slices(28);
    for (WorkerRecord& w : steps.back().workers) w.states = steps.front().workers.front().states;
    if (other) change_layer(steps, "head", 27);
    RunOptions options{.final_states = false};
    auto notes = steps;
    steps.back() = steps_hashed_in_slices(28).back();
    record(folder / name, steps, options, &notes.back());
  };
  write("a", false);
  write("b", true);
  const auto c = compare_folders(folder / "a", folder / "b");
  expect_first(c, Stage::kFinal, 27, {10, 11, 12});
  EXPECT_EQ(first(c).last_seen, 3U);
  EXPECT_TRUE(has(bracket_text(*c.first()), "one of the steps 4 to 27, or after it"));
}

TEST(Brackets, SayThatParametersWereNeverSeenBefore) {
  auto a = steps_hashed_in_slices(30);
  auto b = steps_hashed_in_slices(30);
  change_layer(b, "layers.10", 0);
  a.erase(a.begin());
  b.erase(b.begin());
  const auto c = compare_steps(a, b);
  expect_first(c, Stage::kParameters, 2, {10, 11, 12});
  EXPECT_EQ(c.first()->last_identical, std::nullopt);
  EXPECT_EQ(bracket_text(*c.first()), "these were not compared before");
}

TEST(Brackets, RunForwardAfterTheLastRecordedStep) {
  const auto steps = steps_hashed_in_slices(27);  // slice 1, layers.2, is hashed at the last step
  auto end = steps.back();
  for (WorkerRecord& w : end.workers) w.states = step_of(0, 1).workers.front().states;
  std::vector<StepRecord> other = {end};
  change_layer(other, "layers.2", 0);
  const TempFolder folder;
  const RunOptions options{.final_states = false, .unrecorded = 2};
  record(folder / "a", steps, options, &end);
  record(folder / "b", steps, options, &other.front());
  const auto c = compare_folders(folder / "a", folder / "b");
  EXPECT_EQ(c.models[0].first, Stage::kFinal);
  EXPECT_TRUE(
      has(bracket_text(c.models[0]), "one of the last 3 updates, those of the steps 26 to 28"))
      << bracket_text(c.models[0]);
}

TEST(Brackets, OfAReductionBeginWhereItWasLastRead) {
  auto a = steps_of(30);
  auto b = steps_of(30);
  for (auto* steps : {&a, &b}) {
    for (StepRecord& s : *steps) {
      for (WorkerRecord& w : s.workers) {
        if (s.step % 25 == 0) continue;
        w.reduced_norm = NAN;
        w.reduced_fingerprint = 0;
      }
    }
  }
  for (WorkerRecord& w : b[25].workers) w.reduced_fingerprint ^= 1;
  const ModelComparison m = compare_steps(a, b).models[0];
  EXPECT_EQ(m.first, Stage::kReduction);
  EXPECT_EQ(m.last_identical, Step(0));
  EXPECT_EQ(bracket_text(m), "it began at one of the steps 1 to 25");
}

TEST(Brackets, OfAGradientBeginWhereItsWorkerWasLastCompared) {
  auto b = steps_of(10);
  for (StepRecord& s : b) {
    if (s.step >= 7) change_gradient(s, 2, {"head"});
    if (s.step >= 2 && s.step < 7) remove_worker(s, 2);
  }
  const ModelComparison m = compare_steps(steps_of(10), b).models[0];
  EXPECT_EQ(m.first, Stage::kGradient);
  EXPECT_EQ(m.last_identical, Step(1));
  EXPECT_EQ(bracket_text(m), "it began at one of the steps 2 to 7");
}

TEST(Brackets, OfALossThatWasNeverComparedSaySo) {
  auto a = steps_of(6);
  auto b = steps_of(6);
  for (auto* steps : {&a, &b}) {
    for (StepRecord& s : *steps) {
      if (s.step < 4) s.workers[1].loss = NAN;
    }
  }
  b[4].workers[1].loss += 1;
  const ModelComparison m = compare_steps(a, b).models[0];
  EXPECT_EQ(m.first, Stage::kLoss);
  EXPECT_EQ(m.last_identical, Step());
  EXPECT_EQ(bracket_text(m), "these were not compared before");
}

}  // namespace
}  // namespace presum::compare
