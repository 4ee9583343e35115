// SPDX-License-Identifier: Apache-2.0
#include "compare/parameter_hashes.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <string>
#include <vector>

#include "compare/compare.h"
#include "compare/testing.h"
#include "compare/wording.h"

namespace presum::compare {
namespace {

using Names = std::vector<std::string>;
using Step = std::optional<std::uint64_t>;

constexpr HashCoverage kWhole{.same_tensors = true, .whole = true};

HashCoverage slice(std::size_t number) { return {.same_tensors = true, .slice = number}; }

TEST(LastEqualHashes, HasSeenNothingAtFirst) {
  const LastEqualHashes seen;
  EXPECT_EQ(seen.of(kWhole, {"a"}), Step());
  EXPECT_EQ(seen.of(slice(3), {"a"}), Step());
  EXPECT_EQ(seen.of({}, {"a"}), Step());
}

TEST(LastEqualHashes, SawEverySliceWhenItSawAll) {
  LastEqualHashes seen;
  seen.equal(40, kWhole, {"a", "b"});
  EXPECT_EQ(seen.of(slice(3), {"a"}), Step(40));
  EXPECT_EQ(seen.of({}, {"a"}), Step(40));
}

TEST(LastEqualHashes, KnowsNothingOfASliceWhoseNumberIsNotKnown) {
  LastEqualHashes seen;
  seen.equal(0, kWhole, {"a"});
  seen.equal(1, {.same_tensors = true}, {"a"});
  EXPECT_EQ(seen.of({.same_tensors = true}, {"a"}), Step(0));
}

// Compares with a model that follows each parameter individually.
TEST(LastEqualHashes, AgreesWithFollowingEveryParameter) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    const std::size_t parameters = 1 + random() % 60;
    const std::size_t steps = kSlices + 1 + random() % 60;
    const auto layer_of = [](std::size_t p) { return "layer " + std::to_string(p / 3); };
    LastEqualHashes seen;
    std::vector<Step> truth(parameters);
    for (std::uint64_t step = 0; step < steps; ++step) {
      Names layers;
      for (std::size_t p = 0; p < parameters; ++p) {
        if (step != 0 && p % kSlices != step % kSlices) continue;
        truth[p] = step;
        layers.push_back(layer_of(p));
      }
      seen.equal(step, step == 0 ? kWhole : slice(step % kSlices), layers);
    }
    const std::size_t p = random() % parameters;
    EXPECT_EQ(seen.of(slice(p % kSlices), {layer_of(p)}), truth[p]);
    Step oldest = truth[p];
    for (std::size_t other = 0; other < parameters; ++other) {
      if (layer_of(other) == layer_of(p)) oldest = std::min(oldest, truth[other]);
    }
    EXPECT_EQ(seen.of(kWhole, {layer_of(p)}), oldest);
  }
}

TEST(LastEqualHashes, TakesASliceThatNeverCameUpForOneThatHoldsTheLayer) {
  LastEqualHashes seen;
  seen.equal(0, kWhole, {"a", "b"});
  seen.equal(1, slice(1), {"a"});
  EXPECT_EQ(seen.of(kWhole, {"a"}), Step(0));
}

TEST(LastEqualHashes, TakesASliceWithoutHashesForOneWithoutTheLayer) {
  LastEqualHashes seen;
  seen.equal(0, kWhole, {"a"});
  for (std::size_t s = 0; s < kSlices; ++s) {
    s == 1 ? seen.equal(1, slice(1), {"a"}) : seen.empty(slice(s));
  }
  EXPECT_EQ(seen.of(kWhole, {"a"}), Step(1));
  EXPECT_TRUE(seen.all_after_start());
  seen.empty(slice(1));
  EXPECT_EQ(seen.of(slice(1), {"a"}), Step(1)) << "nothing was seen then";
}

TEST(ParameterHashes, DoesNotCompareSlicesOfModelsThatTrainOtherParameters) {
  auto b = steps_hashed_in_slices(5);
  for (StepRecord& s : b) {
    for (WorkerRecord& w : s.workers) {
      if (s.step == 0) w.states.front().kind = StateHash::Kind::kBuffers;  // frozen
      for (StateHash& h : w.states) h.value ^= s.step > 0;
    }
  }
  const auto c = compare_steps(steps_hashed_in_slices(5), b);
  EXPECT_EQ(c.models[0].at(Stage::kParameters).compared, 1U);
  EXPECT_TRUE(contains(not_compared_texts(c.models[0]), "of models with other parameters"));
}

TEST(ParameterHashes, ComparesParametersOfEqualSlicesOnly) {
  std::vector<StepRecord> sparse;
  for (std::uint64_t s = 0; s < 50; s += 10) sparse.push_back(step_of(s, 3));
  const auto c = compare_steps(steps_of(50), sparse, {.facts = {{"every", "1"}}},
                               {.facts = {{"every", "10"}}});
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
  EXPECT_EQ(c.models[0].at(Stage::kParameters).compared, 1U) << "step 0: all are hashed";
  EXPECT_TRUE(contains(not_compared_texts(c.models[0]), "hashes are of other parameters"));
}

TEST(Slices, AreComparedThoughOneRunRecordedNoBuffers) {
  auto b = steps_hashed_in_slices(30);
  change_layer(b, "layers.2", 1);
  change_workers(b, [](WorkerRecord& w) {
    std::erase_if(w.states, [](const StateHash& h) { return h.kind == StateHash::Kind::kBuffers; });
  });
  const auto c = compare_steps(steps_hashed_in_slices(30), b);
  EXPECT_EQ(c.outcome, Outcome::kDifferent);
  ASSERT_TRUE(c.models[0].at(Stage::kParameters).first.has_value());
  EXPECT_EQ(c.models[0].at(Stage::kParameters).first->step, 1U);
}

TEST(Slices, ThatWereNotKeptAreNotSeenEqual) {
  auto a = steps_hashed_in_slices(54);
  auto b = steps_hashed_in_slices(54);
  change_layer(b, "layers.10", 4);
  for (auto* steps : {&a, &b}) {
    for (WorkerRecord& w : (*steps)[27].workers) w.states.clear();
  }
  const auto first = compare_steps(a, b).models[0].at(Stage::kParameters).first;
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->step, 52U);
  EXPECT_EQ(first->last_seen, Step(2));
}

}  // namespace
}  // namespace presum::compare
