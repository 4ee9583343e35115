// SPDX-License-Identifier: Apache-2.0
#include "compare/wording.h"

#include <gtest/gtest.h>

#include <utility>

#include "compare/compare.h"
#include "compare/testing.h"

namespace presum::compare {
namespace {

using testing::compare_folders;
using testing::compare_steps;
using testing::contains;
using testing::FakeClock;
using testing::has;
using testing::record;
using testing::RunOptions;
using testing::step_of;
using testing::steps_of;
using testing::steps_sharing_rows;
using testing::TempFolder;

TEST(Agreement, TellsNumbersOfWorkersThatChangeWithinARun) {
  const TempFolder folder;
  const auto facts = [](const char* workers) {
    return RunOptions{.facts = {{"world_size", workers}, {"every", "1"}}, .final_states = false};
  };
  auto second = steps_sharing_rows(2, 28);
  second.erase(second.begin(), second.begin() + 25);
  for (StepRecord& s : second) {
    s.step -= 25;
    for (WorkerRecord& w : s.workers) w.optimizer_step -= 25;
  }
  record(folder / "a", steps_sharing_rows(2, 28), facts("2"));
  record(folder / "b", steps_sharing_rows(3, 25), facts("3"));
  record(folder / "b", second, facts("2"));
  const auto c = compare_folders(folder / "a", folder / "b");
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
  EXPECT_TRUE(agreement_text(c).starts_with(
      "identical for 2 and 3 workers (at 25 of the steps, equal numbers at the others), bit for "
      "bit, at 28 common steps: samples, random generators at 3 steps, "))
      << agreement_text(c);
  EXPECT_TRUE(contains(not_compared_texts(c.models[0]),
                       "loss at 25 of 28 common steps: the numbers of workers differ"));
}

TEST(Agreement, SaysWhichStepsAreCommonThoughTheirCountsAreEqual) {
  auto a = steps_of(8);
  auto b = steps_of(8);
  a.resize(5);
  b.erase(b.begin(), b.begin() + 3);
  EXPECT_TRUE(has(agreement_text(compare_steps(a, b)), "at 2 common steps (A holds 5, B 5)"));
}

void record_two_models(const std::filesystem::path& folder, std::uint64_t begin) {
  FakeClock clock;
  auto writer = runlog::Writer::open(folder, clock.function(), runlog::Journal::kWal, 5);
  ASSERT_TRUE(writer);
  for (std::uint64_t step = 0; step < 3; ++step) {
    for (const std::uint32_t module : {0U, 1U}) {
      StepRecord s = step_of(module == 0 ? step + begin : step, 3);
      s.model.segment = writer->segment();
      s.model.module = module;
      ASSERT_TRUE(writer->add(s));
    }
  }
  ASSERT_TRUE(writer->close());
}

TEST(Agreement, SpeaksOfEveryModel) {
  const TempFolder folder;
  for (const auto& [name, begin] : {std::pair("a", 0U), std::pair("b", 3U), std::pair("c", 0U)}) {
    record_two_models(folder / name, begin);
  }
  const auto c = compare_folders(folder / "a", folder / "b");
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
  EXPECT_TRUE(has(agreement_text(c), "module 0, shard 0: nothing was compared"))
      << agreement_text(c);
  EXPECT_TRUE(
      has(agreement_text(c), "module 1, shard 0: identical in all that was compared, at 3"));
  EXPECT_TRUE(agreement_text(compare_folders(folder / "a", folder / "c"))
                  .starts_with("2 models, each identical in all that was compared"));
}

}  // namespace
}  // namespace presum::compare
