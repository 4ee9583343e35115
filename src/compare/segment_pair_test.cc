// SPDX-License-Identifier: Apache-2.0
#include "compare/segment_pair.h"

#include <gtest/gtest.h>

#include <vector>

#include "compare/compare.h"
#include "compare/testing.h"
#include "compare/wording.h"

namespace presum::compare {
namespace {

const RunOptions kMomentum{.facts = {{"optimizer.momentum", "0.9"}, {"every", "1"}},
                           .final_states = false};
const RunOptions kNoMomentum{.facts = {{"optimizer.momentum", "0"}, {"every", "1"}},
                             .final_states = false};

TEST(SegmentPair, AreNotFactsOfALaterSegment) {
  auto b = steps_hashed_in_slices(10);
  change_layer(b, "layers.2", 1);
  const TempFolder folder;
  record(folder / "a", steps_hashed_in_slices(10), kMomentum);
  record(folder / "b", b, kMomentum);
  record(folder / "a", resumed(9, 14), kMomentum);
  record(folder / "b", resumed(9, 14), kNoMomentum);
  const auto c = compare_folders(folder / "a", folder / "b");
  EXPECT_EQ(c.models[0].first, Stage::kParameters);
  ASSERT_EQ(c.facts.size(), 1U);
  EXPECT_EQ(c.facts[0].since, 9U);
}

TEST(SegmentPair, ComeFromFactsThatWerePassedOverAtFirst) {
  auto without = [](std::vector<StepRecord> steps) {
    change_workers(steps, [](WorkerRecord& w) {
      std::erase_if(w.fingerprints, [](const FingerprintValue& f) {
        return f.kind == static_cast<std::uint32_t>(FingerprintKind::kOptimizerSettings);
      });
    });
    return steps;
  };
  const TempFolder folder;
  record(folder / "a", without(resumed(0, 10)), kMomentum);
  record(folder / "a", without(resumed(9, 14)), kMomentum);
  record(folder / "b", without(resumed(0, 5)), kMomentum);
  record(folder / "b", without(resumed(4, 10)), kNoMomentum);
  record(folder / "b", without(resumed(9, 14)), kNoMomentum);
  const auto c = compare_folders(folder / "a", folder / "b");
  const auto& first = c.models[0].at(Stage::kConfiguration).first;
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(what_text(*first), "optimizer.momentum");
  EXPECT_EQ(first->step, 9U);
}

}  // namespace
}  // namespace presum::compare
