// SPDX-License-Identifier: Apache-2.0
#include "judge/documents.h"

#include <gtest/gtest.h>

#include <limits>

#include "judge/testing.h"

namespace presum::judge {
namespace {

using testing::Recorded;
using testing::RunOnDisk;
using testing::step_record;

using testing::TempFolder;

const std::vector<CheckRecord> kLooked = {{"nonfinite-gradient", CheckRecord::State::kPassed, ""}};

Finding warning() {
  Finding f;
  f.check = "rank-outlier";
  f.severity = Severity::kWarning;
  return f;
}

Judgment judged(const RunLog& log) {
  const auto steps = log.steps();
  EXPECT_TRUE(steps);
  auto out = judge(log, *steps);
  EXPECT_TRUE(out) << out.error().message;
  return *out;
}

TEST(Judge, ManyStepsThatPassedAreConsistent) {
  Recorded run(2, 60);
  run.replace({}, kLooked);
  const auto j = judged(run.log());
  EXPECT_EQ(j.verdict, Verdict::kConsistent);
  EXPECT_EQ(j.reason, "");
}

TEST(Judge, SaysWhyTheEvidenceIsInsufficient) {
  Recorded none(2);
  none.replace({}, kLooked);
  Recorded one(1, 60);
  one.replace({}, kLooked);
  Recorded old(2, 60);
  for (auto& [run, why] : {std::pair<Recorded*, const char*>{&none, "no step was recorded"},
                           {&one, "one rank"},
                           {&old, "no check was made"}}) {
    const auto j = judged(run->log());
    EXPECT_EQ(j.verdict, Verdict::kInsufficientEvidence) << why;
    EXPECT_EQ(j.reason.find(why), 0U) << j.reason;
  }
}

TEST(Judge, StepsOfALoneWorkerAreNotCompared) {
  Recorded run(2);
  for (std::uint64_t s = 0; s < 60; ++s) {
    auto step = step_record(run.segment(), s, 2);
    step.workers.pop_back();
    step.missing_replicas = {1};
    step.cosines.clear();
    run.add(step);
  }
  run.replace({}, kLooked);
  const auto j = judged(run.log());
  EXPECT_EQ(j.verdict, Verdict::kInsufficientEvidence);
  EXPECT_EQ(j.reason, "only 0 steps with at least two ranks");
}

TEST(Judge, CountsStepsWorkersAndChecks) {
  Recorded run(4);
  for (const std::uint64_t s : {10U, 11U, 19U}) {
    auto step = step_record(run.segment(), s, 4);
    step.workers.erase(step.workers.begin() + 1);
    step.missing_replicas = {1};
    if (s == 11) {
      step.workers.erase(step.workers.begin());
      step.missing_replicas = {0, 1};
    }
    step.cosines.clear();
    run.add(step);
  }
  run.replace({}, {{"a", CheckRecord::State::kFound, ""},
                   {"b", CheckRecord::State::kNotPossible, ""},
                   {"c", CheckRecord::State::kNotPossible, ""}});
  const auto c = judged(run.log()).coverage;
  EXPECT_EQ(c.steps_logged, 3U);
  EXPECT_EQ(c.steps_lost, 7U);
  EXPECT_EQ(c.steps_compared, 3U);
  EXPECT_EQ(c.workers_expected, 4U);
  EXPECT_EQ(c.workers_seen, 3U) << "replica 1 never came, replica 0 did";
  EXPECT_EQ(c.checks, (std::array<std::uint64_t, 4>{1, 0, 0, 2}));
}

TEST(Judge, ARecordThatLacksStepsIsNotConsistent) {
  Recorded run(2, 30);
  run.add(step_record(run.segment(), 32, 2));
  run.replace({}, kLooked);
  const auto j = judged(run.log());
  EXPECT_EQ(j.verdict, Verdict::kInsufficientEvidence);
  EXPECT_EQ(j.reason, "2 steps are not in the log, or without the packets of some ranks");
}

TEST(Judge, ARecordWhoseStepsLackPacketsIsNotConsistent) {
  Recorded run(3);
  for (std::uint64_t s = 0; s < 30; ++s) {
    auto step = step_record(run.segment(), s, 3);
    if (s >= 20) step.workers.pop_back();
    if (s >= 20) step.cosines.clear();
    run.add(step);
  }
  run.replace({}, kLooked);
  const auto j = judged(run.log());
  EXPECT_EQ(j.verdict, Verdict::kInsufficientEvidence);
  EXPECT_EQ(j.coverage.steps_lost, 10U);
  EXPECT_EQ(j.coverage.workers_seen, 3U);
}

TEST(Judge, ARecordThatIsIncompleteIsNotConsistentAndSaysSinceWhen) {
  Recorded run(2, 30);
  run.replace({}, kLooked);
  run.mark_incomplete("the disk is full");
  const auto j = judged(run.log());
  EXPECT_EQ(j.verdict, Verdict::kInsufficientEvidence);
  EXPECT_EQ(j.reason, "the record is incomplete after step 29: the disk is full");
  EXPECT_EQ(segments_json(j.segments)[0]["incomplete"],
            "incomplete after step 29: the disk is full");
}

TEST(Judge, FindingsStandInAnIncompleteRecord) {
  Recorded run(2, 30);
  run.replace({warning()}, kLooked);
  run.mark_incomplete("the disk is full");
  EXPECT_EQ(judged(run.log()).verdict, Verdict::kInconsistent);
}

TEST(PacketsText, NamesWhatCouldNotBeUsed) {
  EXPECT_EQ(packets_text({}), "");
  EXPECT_EQ(packets_text({.late = 135}), "135 packets arrived late");
  EXPECT_EQ(packets_text({.damaged = 1, .foreign = 2, .duplicate = 1, .late = 1}),
            "1 packet arrived late, 1 packet came twice, 1 packet damaged, 2 packets of another "
            "run");
}

TEST(Judge, SegmentsSayWhatAPreflightEndedWith) {
  TempFolder folder;
  {
    RunOnDisk first(folder / "run", "text", 2);
    first.preflight(1);
    first.log();
  }
  RunOnDisk second(folder / "run", "text", 2);
  const RunLog log = second.log();
  const auto all = segments_json(judge(log, {})->segments);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0]["preflight_exit_code"], 1);
  EXPECT_EQ(all[0]["closed"], true);
  EXPECT_TRUE(all[1]["preflight_exit_code"].is_null());
  const auto one = judge(log, {}, 2)->segments;
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(one.front().segment, 2U);
}

TEST(FindingsJson, WhatIsNoNumberIsNull) {
  Finding f = warning();
  f.confidence = kNaN;
  f.evidence = {{"a-check", {0}, "a sentence", R"({"most":9223372036854775807,"a":0.1})"},
                {"", {}, "", "damaged"}};
  const auto json = findings_json(std::vector{f});
  EXPECT_TRUE(json[0]["confidence"].is_null());
  EXPECT_TRUE(json[0]["equal_until"].is_null());
  EXPECT_EQ(json[0]["evidence"][0]["values"].dump(), R"({"most":9223372036854775807,"a":0.1})");
  EXPECT_EQ(json[0]["evidence"][1].dump(), R"({"check":"","ranks":[],"sentence":"","values":{}})");
  EXPECT_EQ(findings_json({}).dump(), "[]");
}

Finding of_module(std::uint32_t model_index, std::vector<std::uint32_t> ranks,
                  std::uint64_t first) {
  Finding f;
  f.model = {1, model_index, 0};
  f.check = "rank-outlier";
  f.severity = Severity::kWarning;
  f.ranks = std::move(ranks);
  f.first_step = first;
  f.last_step = first + 10;
  f.confidence = 0.5 + 0.1 * model_index;
  return f;
}

TEST(OnePerCause, WhatSeveralModelsShowIsOneFinding) {
  const auto one =
      one_per_cause({of_module(0, {2}, 10), of_module(1, {2}, 5), of_module(2, {2}, 70)});
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(one[0].model.model_index, 0U);
  EXPECT_EQ(one[0].first_step, 5U);
  EXPECT_EQ(one[0].last_step, 80U);
  EXPECT_EQ(one[0].elsewhere, (std::vector<ModelKey>{{1, 1, 0}, {1, 2, 0}}));
  EXPECT_DOUBLE_EQ(one[0].confidence, 0.7);
}

TEST(OnePerCause, OtherRanksTimesOrTheSameModelAreOthers) {
  EXPECT_EQ(one_per_cause({of_module(0, {2}, 10), of_module(1, {3}, 10)}).size(), 2U);
  EXPECT_EQ(one_per_cause({of_module(0, {2}, 10), of_module(1, {2}, 500)}).size(), 2U);
  EXPECT_EQ(one_per_cause({of_module(0, {2}, 10), of_module(0, {2}, 12)}).size(), 2U);
  EXPECT_TRUE(one_per_cause({}).empty());
}

}  // namespace
}  // namespace presum::judge
