// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "judge/testing.h"
#include "report/report.h"

namespace presum::report {
namespace {

using testing::Recorded;
using testing::step_record;

Json data_of(Recorded& run) {
  std::vector<RunLog> logs;
  logs.push_back(run.log());
  auto data = page_data(logs);
  EXPECT_TRUE(data) << data.error().message;
  return data->at("runs").at(0);
}

TEST(PageData, HoldsWhatTheRunLogHolds) {
  Recorded run(3, 4, "layer");
  const Json data = data_of(run);
  EXPECT_EQ(data["name"], "run");
  const Json& part = data["parts"][0];
  EXPECT_EQ(part["x"], (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(part["coverage"]["steps"], 4);
  EXPECT_EQ(part["coverage"]["workers_seen"], 3);
  EXPECT_EQ(part["series"]["loss_min"][1], 2.0);
  EXPECT_EQ(part["series"]["loss_max"][1], 2.25);
  EXPECT_EQ(part["workers"][2]["lines"]["loss"][0], 2.25);
  EXPECT_EQ(part["workers"][2]["mean"]["grad_norm"], 1.5);
  EXPECT_EQ(part["groups"][0]["norms"][0], 2.0);
  EXPECT_EQ(part["matrices"].size(), 4U);
  EXPECT_EQ(part["matrices"][0]["cosines"], (std::vector<int>{500, 500, 500}));
}

TEST(PageData, MissingAndNonfiniteWorkersAreMarked) {
  Recorded run(3, 1);
  auto step = step_record(run.segment(), 1, 3);
  step.workers[0].loss = kNaN;
  step.workers[0].loss_nonfinite = true;
  step.workers.erase(step.workers.begin() + 1);
  step.missing_replicas = {1};
  step.cosines.resize(1);
  run.add(step);
  const Json part = data_of(run)["parts"][0];
  EXPECT_EQ(part["missing"], (std::vector<int>{0, 1}));
  EXPECT_EQ(part["workers"][0]["heat"]["loss"][1], 30'002);
  EXPECT_EQ(part["workers"][1]["heat"]["loss"][1], 30'000);
  EXPECT_TRUE(part["workers"][1]["lines"]["loss"][1].is_null());
  EXPECT_EQ(part["matrices"][1]["replicas"], (std::vector<int>{0, 2}));
}

TEST(PageData, HoldsFindingsAndChecks) {
  Recorded run(2, 1);
  Finding f;
  f.check = "zero-gradient";
  f.severity = Severity::kCritical;
  f.evidence = {{f.check, {0}, "It is zero", R"({"z":1.0,"a":2.0})"}};
  std::vector<Finding> many(150, f);
  run.replace(many, {{"zero-gradient", CheckRecord::State::kFound, "it is zero"}});
  const Json judgment = data_of(run)["judgment"];
  EXPECT_EQ(judgment["verdict"], "inconsistent");
  EXPECT_EQ(judgment["count"], 150);
  EXPECT_EQ(judgment["findings"].size(), 100U);
  EXPECT_EQ(judgment["findings"][0]["evidence"][0]["values"].dump(), R"({"z":1.0,"a":2.0})")
      << "in its order";
  EXPECT_EQ(judgment["checks"][0]["state"], "found");
}

TEST(PageData, HoldsTimesWhereTheyAreKnown) {
  Recorded run(2, 1);
  auto step = step_record(run.segment(), 1, 2);
  step.workers[0].times.seconds = {0.5, 0, 0, 0, 0, 0.5};
  step.workers[1].times.seconds = {0.875, 0, 0, 0, 0, 0.125};
  run.add(step);
  const Json time = data_of(run)["parts"][0]["time"];
  EXPECT_EQ(time["steps"], 1);
  EXPECT_EQ(time["waited"], 0.375);
  EXPECT_EQ(time["workers"][1]["mean"]["data"], 0.875);
  EXPECT_EQ(time["workers"][1]["own"].dump(), "[null,875.0]");
}

TEST(PageData, HasNoTimesWhereNoneIsKnown) {
  Recorded run(2, 1);
  const Json data = data_of(run);
  EXPECT_TRUE(data["parts"][0]["time"].is_null());
  EXPECT_EQ(data["stalls"]["count"], 0);
}

TEST(PageData, HoldsNotesAndStallsOfARunThatNeverTookAStep) {
  Recorded run(2);
  Stall stall;
  stall.sentence = "Rank 1 stopped answering";
  stall.ranks = {1};
  stall.all.resize(1);
  run.add(stall, 1);
  const Json data = data_of(run);
  EXPECT_TRUE(data["parts"].empty());
  EXPECT_EQ(data["notes"].size(), 1U);
  EXPECT_EQ(data["stalls"]["list"][0]["sentence"], stall.sentence);
  EXPECT_EQ(data["stalls"]["list"][0]["places"].size(), 1U);
}

TEST(PageData, SegmentsAndModulesArePartsOfTheirOwn) {
  Recorded run(2, 3);
  auto other = step_record(run.segment(), 0, 2);
  other.model.model_index = 1;
  run.add(other);
  const Json parts = data_of(run)["parts"];
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0]["coverage"]["steps"], 3);
  EXPECT_EQ(parts[1]["model_index"], 1);
  EXPECT_EQ(parts[1]["workers"][0]["steps"], 1);
}

TEST(PageData, LongRunsKeepTheirSpikes) {
  Recorded run(4);
  constexpr std::uint64_t kSteps = 5'000;
  constexpr std::uint64_t kSpike = 3'210;
  for (std::uint64_t s = 0; s < kSteps; ++s) {
    auto step = step_record(run.segment(), s, 4);
    if (s == kSpike) {
      step.loss_std = 77;
      step.workers[2].loss = 99;
    }
    run.add(step);
  }
  const Json part = data_of(run)["parts"][0];
  EXPECT_TRUE(part["decimated"]);
  EXPECT_LE(part["x"].size(), 1'200U);
  const auto& spread = part["series"]["loss_std"];
  EXPECT_EQ(std::count(spread.begin(), spread.end(), 77.0), 1);
  const auto& line = part["workers"][2]["lines"]["loss"];
  EXPECT_EQ(std::count(line.begin(), line.end(), 99.0), 1);
  const auto& heat = part["workers"][2]["heat"]["loss"];
  EXPECT_EQ(*std::max_element(heat.begin(), heat.end()), heat[kSpike * heat.size() / kSteps]);
  EXPECT_TRUE(std::any_of(part["matrices"].begin(), part["matrices"].end(),
                          [](const Json& m) { return m["step"] == kSpike; }));
}

TEST(PageData, LongRunsHoldTheMatrixOfTheStepWhereAFindingBegins) {
  Recorded run(4);
  for (std::uint64_t s = 0; s < 500; ++s) run.add(step_record(run.segment(), 10 * s, 4));
  Finding f;
  f.check = "rank-outlier";
  f.severity = Severity::kCritical;
  f.ranks = {2};
  f.first_step = 1231;  // between two recorded steps
  f.last_step = 4000;
  run.replace({f}, {});
  const Json matrices = data_of(run)["parts"][0]["matrices"];
  EXPECT_LE(matrices.size(), 64U);
  EXPECT_TRUE(std::ranges::any_of(matrices, [](const Json& m) { return m["step"] == 1240; }));
}

TEST(PageData, StaysBoundedForManyWorkersAndRestarts) {
  Recorded run(64);
  for (std::uint32_t model_index = 0; model_index < 3; ++model_index) {
    for (std::uint64_t s = 0; s < 400; ++s) {
      auto step = step_record(run.segment(), s, 64);
      step.model.model_index = model_index;
      run.add(step);
    }
  }
  EXPECT_LT(embeddable(data_of(run)).size(), 5'000'000U);
}

TEST(PageData, AMatrixOfTheWrongSizeIsLeftOut) {
  Recorded run(4);
  auto step = step_record(run.segment(), 0, 4);
  step.cosines.resize(2);
  run.add(step);
  EXPECT_TRUE(data_of(run)["parts"][0]["matrices"].empty());
}

TEST(Embeddable, NothingCanEndTheScript) {
  const Json json = {{"</script><script>alert(1)</script>", "<!-- & \xE2\x80\xA8\xE2\x80\xA9\xFF"}};
  const auto text = embeddable(json);
  for (const char* bad : {"<", ">", "&", "\xE2\x80\xA8", "\xE2\x80\xA9", "\xFF"}) {
    EXPECT_EQ(text.find(bad), std::string::npos) << bad;
  }
  EXPECT_NE(text.find("\\u2028\\u2029"), std::string::npos);
  EXPECT_EQ(Json::parse(text).begin().key(), "</script><script>alert(1)</script>");
}

TEST(Number, KeepsFiveDigitsAndNoNan) {
  EXPECT_EQ(number(1.23456789).dump(), "1.2346");
  EXPECT_EQ(number(1.23456789, 7).dump(), "1.234568");
  EXPECT_TRUE(number(kNaN).is_null());
  EXPECT_TRUE(number(-std::numeric_limits<double>::infinity()).is_null());
}

}  // namespace
}  // namespace presum::report
