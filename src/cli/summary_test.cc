// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/testing.h"

namespace presum::cli {
namespace {

TEST(Summary, HasOneLinePerRun) {
  const TempFolder folder;
  make_run(folder / "first", steps_of(3, 2));
  make_run(folder / "second", steps_of(30, 1.5));
  const CommandResult ran =
      run({"summary", (folder / "first").string(), (folder / "second/presum.db").string()});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.err, "");
  const auto rows = lines(ran.out);
  ASSERT_EQ(rows.size(), 3U) << ran.out;
  EXPECT_EQ(words(rows[1]), (std::vector<std::string>{"first", "3", "2", "2", "0.25", "0.5", "3",
                                                      "0.125", "0.0625", "1.75", "2"}));
  EXPECT_EQ(words(rows[2])[0], "second");
  EXPECT_EQ(words(rows[2])[1], "30");
  EXPECT_EQ(words(rows[2])[10], "29") << "the noise scale at the end";
}

TEST(Summary, LossIsTheMeanOfTheLast20Steps) {
  auto steps = steps_of(30, 100);
  for (std::size_t s = 10; s < 30; ++s) steps[s].loss_mean = s % 2 == 0 ? 1 : 2;
  EXPECT_EQ(words(lines(run_on("summary", steps).out).at(1))[3], "1.5");
}

TEST(Summary, ShowsDashesForWhatIsUnknownAndForARunWithoutSteps) {
  const TempFolder folder;
  auto steps = steps_of(2, 1);
  for (StepRecord& s : steps) s.cosine_mean = kNaN;
  make_run(folder / "one", steps);
  make_run(folder / "none", {});
  const CommandResult ran = run({"summary", (folder / "one").string(), (folder / "none").string()});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(words(lines(ran.out).at(1))[8], "-");
  EXPECT_EQ(words(lines(ran.out).at(2)),
            (std::vector<std::string>{"none", "0", "-", "-", "-", "-", "-", "-", "-", "-", "-"}));
}

TEST(Summary, KeepsModelsApart) {
  auto steps = steps_of(4, 1);
  steps[2].model.model_index = 1;
  steps[3].model.dp_group = 1;
  const auto rows = lines(run_on("summary", steps).out);
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[1].find("run model 0 data-parallel group 0"), 0U);
  EXPECT_EQ(rows[2].find("run model 0 data-parallel group 1"), 0U);
  EXPECT_EQ(rows[3].find("run model 1 data-parallel group 0"), 0U);
  steps.pop_back();
  EXPECT_EQ(lines(run_on("summary", steps).out).at(2).find("run model 1  "), 0U);
}

std::vector<StepRecord> timed_steps() {
  auto steps = steps_of(3, 1);
  for (std::size_t s = 1; s < steps.size(); ++s) {
    steps[s].workers[0].times = times_of(4, 7);
    steps[s].workers[1].times = times_of(10, 1);
  }
  return steps;
}

const Stall kStall = {.step = 2,
                      .seconds = 72,
                      .over = true,
                      .sentence = "Rank 5 is in evaluate()\x1b",
                      .ranks = {5}};

TEST(Summary, SaysWhereTheTimeWent) {
  Stall meant = kStall;
  meant.harmless = true;
  const auto text = lines(
      run_on("summary", timed_steps(), {.note = "", .findings = {}, .stalls = {kStall, meant}})
          .out);
  ASSERT_EQ(text.size(), 12U);
  EXPECT_EQ(text[3], "run: mean milliseconds of 2 steps");
  EXPECT_EQ(words(text[5]), (std::vector<std::string>{"4", "0.40", "1.00", "1.60", "0.40", "0.60",
                                                      "7.00", "4.00", "50", "%"}));
  EXPECT_EQ(words(text[6])[1], "slowest");
  EXPECT_EQ(words(text[7])[0], "mean");
  EXPECT_EQ(text[8], "rank 5 is the slowest: its own time is 2.50 times the others' median");
  EXPECT_EQ(text[9], "waiting for slower ranks: 0.012 rank-seconds, 27.3 % of all recorded time");
  EXPECT_EQ(text[11],
            "run: the job stalled for 72 s at step 2, then continued: Rank 5 is in evaluate()?");
}

TEST(Summary, SaysWhatPresumTookInTheFirstLineOfItsModel) {
  auto steps = steps_of(3, 1);
  // Global rank 0 does not take part in the training.
  for (StepRecord& step : steps) step.model.dp_group = 1;
  steps.push_back(steps.front());
  steps.back().model.dp_group = 2;
  RunExtras extras;
  extras.facts = {{"overhead_ms", "2.5"}, {"step_ms", "125"}};
  const std::string said =
      "run data-parallel group 1: presum took 2.50 ms of a step of 125.0 ms on rank 5";
  const std::string text = run_on("summary", steps, extras).out;
  EXPECT_NE(text.find(said), std::string::npos) << text;
  EXPECT_EQ(text.find("run data-parallel group 2: presum"), std::string::npos) << text;
  const auto json =
      nlohmann::json::parse(run_on("summary", steps, extras, {"--format", "json"}).out);
  EXPECT_NEAR(json[0]["overhead"]["share"].get<double>(), 0.02, 1e-12);
  EXPECT_TRUE(json[1]["overhead"].is_null());
}

TEST(Summary, HasTimesAndStallsInJson) {
  const TempFolder folder;
  make_run(folder / "run", timed_steps(), {.note = "", .findings = {}, .stalls = {kStall}});
  make_run(folder / "none", steps_of(3, 1));
  const auto json = nlohmann::json::parse(
      run({"summary", (folder / "run").string(), (folder / "none").string(), "--format", "json"})
          .out);
  ASSERT_EQ(json.size(), 2U);
  EXPECT_EQ(json[0]["run"], "run");
  const auto& times = json[0]["times"];
  EXPECT_EQ(times["steps"], 2);
  EXPECT_EQ(times["slowest"], 5);
  EXPECT_NEAR(times["ranks"][1]["own"].get<double>(), 0.01, 1e-12);
  EXPECT_NEAR(times["mean"]["reduction"].get<double>(), 0.004, 1e-12);
  EXPECT_NEAR(times["waited"].get<double>(), 0.012, 1e-12);
  EXPECT_EQ(json[0]["stalls"][0]["ranks"], std::vector<int>{5});
  EXPECT_TRUE(json[1]["times"].is_null());
}

}  // namespace
}  // namespace presum::cli
