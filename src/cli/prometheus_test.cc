// SPDX-License-Identifier: Apache-2.0
#include "cli/prometheus.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cli/testing.h"

namespace presum::cli {
namespace {

constexpr double kNow = 1'700'000'000;

std::string text_of(const std::vector<StepRecord>& steps, const RunExtras& extras = {},
                    const std::string& name = "run") {
  const TempFolder folder;
  make_run(folder / name, steps, extras);
  const auto read = PrometheusReader((folder / name).string()).read(kNow);
  return read ? read->text : read.error().message;
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
  EXPECT_TRUE(has(text, R"(presum_ranks_missing{run="run",model="0",group="0"} 0)")) << text;
  EXPECT_NE(text.find("\npresum_started_timestamp_seconds{run=\"run\"} "), std::string::npos);
  EXPECT_EQ(text.find("presum_stalled"), std::string::npos) << "no rank reported where it is";
  EXPECT_TRUE(has(text, R"(presum_recording_incomplete{run="run"} 0)")) << text;
  EXPECT_TRUE(has(text, "# TYPE presum_loss gauge")) << text;
  EXPECT_EQ(text.find("presum_cosine_low"), std::string::npos) << "an unknown value";
  EXPECT_EQ(text.find("presum_own_seconds"), std::string::npos) << "an unknown value";
}

TEST(Prometheus, CountsFindingsAndShowsStalls) {
  RunExtras extras = two_findings();
  extras.checks.push_back({"stall", CheckRecord::State::kPassed, ""});
  const std::string text = text_of(steps_of(9, 1), extras);
  EXPECT_TRUE(
      has(text, R"(presum_findings{run="run",check="duplicate-data",severity="critical"} 1)"))
      << text;
  EXPECT_TRUE(has(text, R"(presum_findings{run="run",check="loss-event",severity="info"} 1)"));
  EXPECT_TRUE(has(text, R"(presum_stalled{run="run"} 0)")) << text;
}

TEST(Prometheus, ShowsAStallOfAnOpenRunThatIsNotKnownToEnd) {
  const auto shown = [](const Stall& stall) {
    const TempFolder folder;
    FakeClock clock;
    auto writer = runlog::Writer::open(folder / "run", clock.function(), runlog::Journal::kWal);
    EXPECT_TRUE(writer->add(stall));
    EXPECT_TRUE(writer->commit()) << "and it stays open";
    const auto text = PrometheusReader((folder / "run").string()).read(kNow)->text;
    return has(text, R"(presum_stalled{run="run"} 1)");
  };
  EXPECT_TRUE(shown({.number = 1, .seconds = 90}));
  EXPECT_FALSE(shown({.number = 1, .seconds = 90, .over = true}));
  EXPECT_FALSE(shown({.number = 1, .seconds = 90, .harmless = true}));
  EXPECT_FALSE(shown({.number = 1, .seconds = 90, .busy = true}));
  const std::string closed = text_of(steps_of(1, 1), {.stalls = {{.seconds = 90}}});
  EXPECT_FALSE(has(closed, R"(presum_stalled{run="run"} 1)")) << "a run that has ended";
}

TEST(Prometheus, CountsMissingRanksWithoutThoseThatLeftOut) {
  StepRecord step = step_with(4);
  step.workers_expected = 7;
  step.workers_left_out = 1;
  EXPECT_TRUE(has(text_of({step}), R"(presum_ranks_missing{run="run",model="0",group="0"} 2)"));
}

TEST(Prometheus, KnowsWhenAStepIsNew) {
  const TempFolder folder;
  FakeClock clock;
  auto writer = runlog::Writer::open(folder / "run", clock.function(), runlog::Journal::kWal);
  PrometheusReader reader((folder / "run").string());
  const auto time_of = [&](double now) {
    const std::string text = reader.read(now)->text;
    constexpr std::string_view kName = "\npresum_last_step_timestamp_seconds{run=\"run\"} ";
    const auto at = text.find(kName);
    return at == std::string::npos ? kNaN : std::stod(text.substr(at + kName.size()));
  };
  EXPECT_TRUE(std::isnan(time_of(1)));
  ASSERT_TRUE(writer->add(step_of(0, 1)));
  ASSERT_TRUE(writer->commit());
  EXPECT_EQ(time_of(20), 20);
  EXPECT_EQ(time_of(30), 20);
}

TEST(Prometheus, BoundsTheSeriesOfManyRanks) {
  EXPECT_TRUE(
      has(text_of({step_with(64)}), R"(presum_loss{run="run",model="0",group="0",rank="63"} 63)"));
  StepRecord most = step_with(64);
  most.workers_expected = 65;
  EXPECT_EQ(text_of({most}).find("rank=\""), std::string::npos) << "one did not arrive";
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
  const std::string text = text_of({});
  EXPECT_EQ(text.find("presum_step"), std::string::npos) << text;
  EXPECT_EQ(text.find("last_step"), std::string::npos) << text;
  EXPECT_TRUE(has(text, R"(presum_recording_incomplete{run="run"} 0)")) << text;
}

TEST(Prometheus, ReplacesItsOwnFiles) {
  const TempFolder folder;
  make_run(folder / "run", steps_of(3, 1));
  const auto run_folder = (folder / "run").string();
  const auto file = (folder / "presum.prom").string();
  for (int time = 0; time < 2; ++time) {
    ASSERT_EQ(run({"export", run_folder, "--prometheus", file}).code, 0);
    EXPECT_TRUE(has(read_file(file), R"(presum_step{run="run",model="0",group="0"} 2)"));
  }
}

TEST(Prometheus, RefusesWhatItCannotDo) {
  const TempFolder folder;
  make_run(folder / "run", steps_of(3, 1));
  const auto run_folder = (folder / "run").string();
  const auto file = (folder / "mine.prom").string();
  for (const std::string mine : {"mine", "#!/bin/sh", "# HELP node_load1 1m load average.", "#"}) {
    write_file(file, mine);
    expect_refusal({"export", run_folder, "--prometheus", file}, "something else");
    EXPECT_EQ(read_file(file), mine);
  }
  expect_refusal({"export", run_folder, "--prometheus", "notes.txt"}, ".prom");
  expect_refusal({"export", run_folder, "--follow"}, "--prometheus");
  expect_refusal({"export", run_folder, "--prometheus", "a.prom", "--table", "steps"}, "--table");
  expect_refusal({"export", run_folder, "--prometheus", "a.prom", "--format", "csv"}, "--format");
  expect_refusal({"export", (folder / "none").string(), "--prometheus", file}, "none");
}

}  // namespace
}  // namespace presum::cli
