// SPDX-License-Identifier: Apache-2.0
#include "cli/prometheus.h"

#include <gtest/gtest.h>

#include "cli/testing.h"

namespace presum::cli {
namespace {

constexpr double kNow = 1'700'000'000;

std::string text_of(const std::vector<StepRecord>& steps, const RunExtras& extras = {},
                    const std::string& name = "run", std::optional<double> now = kNow) {
  const TempFolder folder;
  make_run(folder / name, steps, extras);
  const auto log = RunLog::open(folder / name);
  if (!log) return log.error().message;
  const auto text = prometheus_text(*log, now);
  return text ? *text : text.error().message;
}

bool has(const std::string& text, const std::string& line) {
  return text.find('\n' + line + '\n') != std::string::npos;
}

StepRecord step_with(std::uint32_t ranks) {
  StepRecord step = step_of(7, 2.5);
  step.workers_expected = ranks;
  step.workers.resize(ranks, step.workers.front());
  for (std::uint32_t r = 0; r < ranks; ++r) {
    step.workers[r].rank = step.workers[r].replica = r;
    step.workers[r].loss = r;
  }
  return step;
}

TEST(Prometheus, ShowsTheLastStepOfEachMetricOnce) {
  const std::string text = text_of(steps_of(9, 1.5));
  EXPECT_TRUE(has(text, R"(presum_step{run="run",model="0",group="0"} 8)")) << text;
  EXPECT_TRUE(has(text, R"(presum_loss{run="run",model="0",group="0",rank="5"} 1.5)")) << text;
  EXPECT_TRUE(has(text, R"(presum_last_step_timestamp_seconds{run="run"} 1700000000)")) << text;
  EXPECT_TRUE(has(text, R"(presum_stalled{run="run"} 0)")) << text;
  EXPECT_TRUE(has(text, R"(presum_recording_incomplete{run="run"} 0)")) << text;
  EXPECT_TRUE(has(text, "# TYPE presum_loss gauge")) << text;
  EXPECT_EQ(text.find("presum_cosine_low"), std::string::npos) << "an unknown value";
  EXPECT_EQ(text.find("presum_own_seconds"), std::string::npos) << "an unknown value";
}

TEST(Prometheus, CountsFindingsAndShowsStalls) {
  RunExtras extras = two_findings();
  extras.stalls = {Stall{.seconds = 90}};
  const std::string text = text_of(steps_of(9, 1), extras);
  EXPECT_TRUE(
      has(text, R"(presum_findings{run="run",check="duplicate-data",severity="critical"} 1)"))
      << text;
  EXPECT_TRUE(has(text, R"(presum_findings{run="run",check="loss-event",severity="info"} 1)"));
  EXPECT_TRUE(has(text, R"(presum_stalled{run="run"} 1)")) << text;
  extras.stalls.front().over = true;
  EXPECT_TRUE(has(text_of(steps_of(9, 1), extras), R"(presum_stalled{run="run"} 0)"));
}

TEST(Prometheus, BoundsTheSeriesOfManyRanks) {
  EXPECT_TRUE(
      has(text_of({step_with(64)}), R"(presum_loss{run="run",model="0",group="0",rank="63"} 63)"));
  const std::string text = text_of({step_with(65)});
  EXPECT_EQ(text.find("rank=\""), std::string::npos) << text;
  EXPECT_TRUE(has(text, R"(presum_loss_lowest{run="run",model="0",group="0"} 0)")) << text;
  EXPECT_TRUE(has(text, R"(presum_loss_highest{run="run",model="0",group="0"} 64)")) << text;
}

TEST(Prometheus, EscapesNamesAndShowsInfinity) {
  StepRecord step = step_of(0, 1);
  step.workers.front().loss = std::numeric_limits<double>::infinity();
  const std::string text = text_of({step}, {}, "a\"b\\c\nd");
  EXPECT_TRUE(has(text, R"(presum_loss{run="a\"b\\c?d",model="0",group="0",rank="4"} +Inf)"))
      << text;
}

TEST(Prometheus, ARunWithoutStepsHasNoStep) {
  const std::string text = text_of({}, {}, "run", {});
  EXPECT_EQ(text.find("presum_step"), std::string::npos) << text;
  EXPECT_EQ(text.find("timestamp"), std::string::npos) << text;
  EXPECT_TRUE(has('\n' + text, "presum_stalled{run=\"run\"} 0")) << text;
}

TEST(Prometheus, TheFileStaysUnlessFollowed) {
  const TempFolder folder;
  make_run(folder / "run", steps_of(3, 1));
  const auto run_folder = (folder / "run").string();
  const auto file = (folder / "presum.prom").string();
  ASSERT_EQ(run({"export", run_folder, "--prometheus", file}).code, 0);
  EXPECT_TRUE(has(read_file(file), R"(presum_step{run="run",model="0",group="0"} 2)"));
  const CommandResult followed = run({"export", run_folder, "--prometheus", file, "--follow"});
  EXPECT_EQ(followed.code, 0);
  EXPECT_NE(followed.err.find("has already ended"), std::string::npos) << followed.err;
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(Prometheus, RefusesWhatItCannotDo) {
  const TempFolder folder;
  make_run(folder / "run", steps_of(3, 1));
  const auto run_folder = (folder / "run").string();
  const auto file = (folder / "notes.txt").string();
  write_file(file, "mine");
  expect_refusal({"export", run_folder, "--prometheus", file}, "something else");
  expect_refusal({"export", run_folder, "--prometheus", file, "--follow"}, "something else");
  EXPECT_EQ(read_file(file), "mine");
  expect_refusal({"export", run_folder, "--follow"}, "--prometheus");
  expect_refusal({"export", run_folder, "--prometheus", "a", "--table", "steps"}, "--table");
  expect_refusal({"export", (folder / "none").string(), "--prometheus", file}, "none");
}

}  // namespace
}  // namespace presum::cli
