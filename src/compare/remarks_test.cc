// SPDX-License-Identifier: Apache-2.0
#include "compare/remarks.h"

#include <gtest/gtest.h>

#include "compare/compare.h"
#include "compare/testing.h"
#include "compare/wording.h"
#include "runlog/sqlite.h"

namespace presum::compare {
namespace {

TEST(Remarks, SaysThatARunWasNotClosed) {
  const TempFolder folder;
  record(folder / "a", steps_of(5));
  record(folder / "b", steps_of(3), {.final_states = false, .closed = false});
  const auto c = compare_folders(folder / "a", folder / "b");
  EXPECT_EQ(agreement_text(c),
            "identical in all that was compared, at 3 common steps (A holds 5, B 3); not compared: "
            "final parameters");
  EXPECT_TRUE(contains(remark_texts(c.models[0]), "B was not closed"));
}

TEST(Remarks, SaysWhereARecordIsIncomplete) {
  const TempFolder folder;
  record(folder / "a", steps_of(5));
  record(folder / "b", steps_of(3), {.final_states = false, .closed = false});
  {
    auto db = runlog::Database::open(folder / "b" / "presum.db", runlog::Database::Mode::kWrite);
    ASSERT_TRUE(db->execute("UPDATE segment SET incomplete='disk full', incomplete_after=2"));
  }
  const auto c = compare_folders(folder / "a", folder / "b");
  EXPECT_TRUE(
      contains(remark_texts(c.models[0]), "the record of B is incomplete after step 2: disk full"));
  EXPECT_FALSE(contains(remark_texts(c.models[0]), "not closed"));
}

TEST(Remarks, SaysThatGradientsWereNotRead) {
  const auto skip = [](StepRecord& s) { s.workers[0].skipped_parameters = 1; };
  const auto c = changed_at(4, skip);
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
  EXPECT_EQ(c.models[0].at(Stage::kGradient).compared, kSteps);
  EXPECT_TRUE(contains(not_compared_texts(c.models[0]),
                       "gradients that were not read (sparse, or of earlier micro-batches alone) "
                       "at 1 of 12 common steps"));
}

TEST(Remarks, TakesMissingStepsAndWorkersForUnknown) {
  auto b = steps_of(kSteps);
  remove_worker(b[6], 1);
  b[6].missing_replicas = {1};
  b.erase(b.begin() + 3);
  const auto c = compare_steps(steps_of(kSteps), b);
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
  EXPECT_EQ(c.models[0].common_steps, kSteps - 1);
  EXPECT_TRUE(contains(not_compared_texts(c.models[0]), "ranks whose packet is missing"));
  EXPECT_TRUE(contains(not_compared_texts(c.models[0]), "1 of the 12 steps of A"));
}

TEST(Remarks, ComparesTheCommonStepsOfRunsOfOtherLengths) {
  const auto c = compare_steps(steps_of(8), steps_of(5));
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
  EXPECT_EQ(c.models[0].common_steps, 5U);
  EXPECT_TRUE(contains(not_compared_texts(c.models[0]), "did not end at the same step"));
}

TEST(OptimizerSteps, AreCountedWithoutOverflow) {
  auto a = steps_of(3);
  auto b = steps_of(3);
  for (StepRecord& s : a) s.workers[0].optimizer_step = std::uint64_t{1} << 63;
  for (StepRecord& s : b) s.workers[0].optimizer_step = ~std::uint64_t{0};
  const auto c = compare_steps(a, b);
  EXPECT_FALSE(contains(remark_texts(c.models[0]), "fewer optimizer steps"));
}

}  // namespace
}  // namespace presum::compare
