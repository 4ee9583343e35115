// SPDX-License-Identifier: Apache-2.0
#include "compare/parameter_hashes.h"

#include <gtest/gtest.h>

#include <vector>

#include "compare/compare.h"
#include "compare/testing.h"
#include "compare/wording.h"

namespace presum::compare {
namespace {

using Step = std::optional<std::uint64_t>;

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
