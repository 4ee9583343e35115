// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "compare/compare.h"
#include "compare/testing.h"
#include "compare/wording.h"

namespace presum::compare {
namespace {

TEST(Facts, ThatAreTheSameNumberAreEqual) {
  const auto c =
      compare_steps(steps_of(2), steps_of(2), {.facts = {{"optimizer.weight_decay", "0"}}},
                    {.facts = {{"optimizer.weight_decay", "0.0"}}});
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
  EXPECT_TRUE(c.facts.empty());
}

TEST(Facts, OfTheProcessAreLeftOut) {
  const auto c = compare_steps(steps_of(2), steps_of(2),
                               {.facts = {{"pid", "1"}, {"overhead_ms", "1"}, {"step_ms", "9"}}},
                               {.facts = {{"pid", "2"}, {"overhead_ms", "2"}, {"step_ms", "8"}}});
  EXPECT_TRUE(c.facts.empty());
}

TEST(Facts, OfTheEnvironmentAreToldAndDecideNothing) {
  const RunOptions a{.facts = {{"torch", "2.8"}, {"threads", "1"}, {"env.NCCL_ALGO", "ring"}}};
  const RunOptions b{.facts = {{"torch", "2.9"}, {"threads", "1"}}};
  const auto c = compare_steps(steps_of(2), steps_of(2), a, b);
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
  ASSERT_EQ(c.facts.size(), 2U);
  EXPECT_EQ(c.facts[0].key, "env.NCCL_ALGO");
  EXPECT_TRUE(c.facts[0].b.empty());
  EXPECT_EQ(fact_text(c.facts[1].a), "2.8");
  EXPECT_TRUE(c.facts[1].all_ranks);
}

TEST(Facts, ThatDefineTheTrainingAreAConfiguration) {
  const auto c = compare_steps(steps_of(2), steps_of(2), {.facts = {{"optimizer", "SGD"}}},
                               {.facts = {{"optimizer", "Adam"}}});
  expect_first(c, Stage::kConfiguration, 0, {});
  EXPECT_EQ(what_text(first(c)), "optimizer");
  EXPECT_EQ(c.first()->at(Stage::kConfiguration).differing, 2U);
  EXPECT_TRUE(contains(texts(first(c)), "optimizer: SGD in A, Adam in B"));
}

TEST(Facts, ThatOnlyOneRunKnowsAreUnknown) {
  const auto c = compare_steps(steps_of(2), steps_of(2), {.facts = {{"model", "M"}}},
                               {.facts = {{"pid", "1"}, {"torch", "2"}}});
  EXPECT_TRUE(c.facts.empty());
}

// The last of three ranks reports a different value of this fact.
void record_with_own_fact(const std::filesystem::path& folder, const std::string& key) {
  FakeClock clock;
  auto writer = runlog::Writer::open(folder, clock.function(), runlog::Journal::kWal, 5);
  ASSERT_TRUE(writer);
  auto steps = steps_sharing_rows(3);
  for (const WorkerRecord& w : steps.front().workers) {
    packet::Hello hello;
    hello.header.segment = writer->segment();
    hello.header.identity = {.replica = w.replica, .rank = w.rank, .replicas = 3};
    hello.facts.facts = {{"every", "1"}, {key, w.replica == 2 ? "SGD" : "Adam"}};
    ASSERT_TRUE(writer->add(hello));
  }
  for (StepRecord& s : steps) {
    s.model.segment = writer->segment();
    ASSERT_TRUE(writer->add(s));
  }
  add_notes(*writer, steps, {});
  ASSERT_TRUE(writer->close());
}

TEST(Facts, OfOneWorkerMakeOtherNumbersOfWorkersDifferent) {
  for (const std::string key : {"optimizer", "cuda"}) {
    const TempFolder folder;
    record(folder / "a", steps_sharing_rows(2), {.facts = {{"every", "1"}, {key, "Adam"}}});
    record_with_own_fact(folder / "b", key);
    const auto c = compare_folders(folder / "a", folder / "b");
    ASSERT_EQ(c.facts.size(), 1U);
    EXPECT_EQ(fact_text(c.facts[0].a), "Adam");
    EXPECT_EQ(fact_text(c.facts[0].b), "Adam or SGD");
    EXPECT_EQ(c.outcome, key == "optimizer" ? Outcome::kDifferent : Outcome::kIdentical);
  }
}

TEST(Facts, OfVersionsAreNoNumbers) {
  const auto c = compare_steps(steps_of(2), steps_of(2), {.facts = {{"cuda", "12.1"}}},
                               {.facts = {{"cuda", "12.10"}}});
  EXPECT_EQ(c.facts.size(), 1U);
}

}  // namespace
}  // namespace presum::compare
