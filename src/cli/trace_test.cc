// SPDX-License-Identifier: Apache-2.0
#include "cli/trace.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/testing.h"

namespace presum::cli {
namespace {

using Json = nlohmann::json;

// Two ranks, 4 and 5; the second one is slower. The first step has no times.
std::vector<StepRecord> timed_steps(std::uint64_t count) {
  auto out = steps_of(count, 0.5);
  for (StepRecord& s : out) {
    if (s.step == 0) continue;
    s.workers[0].times = times_of(4, 7);
    s.workers[1].times = times_of(10, 1.5);
  }
  return out;
}

std::vector<Json> of_kind(const Json& trace, const std::string& ph) {
  std::vector<Json> out;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == ph) out.push_back(event);
  }
  return out;
}

Json trace_of(const std::vector<StepRecord>& steps, const RunExtras& extras = {}) {
  const CommandResult ran = run_on("export", steps, extras, {"--trace"});
  EXPECT_EQ(ran.code, kOk) << ran.err;
  return Json::parse(ran.out);
}

TEST(Trace, PhasesFollowEachOtherAndStepsBeginTogether) {
  const Json trace = trace_of(timed_steps(4));
  std::map<int, std::vector<Json>> of_rank;
  for (const Json& e : of_kind(trace, "X")) of_rank[e["pid"]].push_back(e);
  ASSERT_EQ(of_rank.size(), 2U);
  for (const auto& [rank, events] : of_rank) {
    ASSERT_EQ(events.size(), 18U);
    double sum = 0;
    for (std::size_t i = 0; i < events.size(); ++i) {
      constexpr std::array kOrder = {"data",      "forward", "backward",
                                     "reduction", "rest",    "optimizer"};
      EXPECT_EQ(events[i]["name"], kOrder[i % 6]);
      const std::size_t step = i / 6;
      EXPECT_EQ(events[i]["args"]["step"], 1 + step);
      const double begin =
          i % 6 == 0 ? 11500.0 * static_cast<double>(step)
                     : events[i - 1]["ts"].get<double>() + events[i - 1]["dur"].get<double>();
      EXPECT_NEAR(events[i]["ts"].get<double>(), begin, 1e-6);
      sum += events[i]["dur"].get<double>();
    }
    EXPECT_NEAR(sum, 3 * (rank == 4 ? 11000 : 11500), 1e-6);
  }
  EXPECT_NE(trace["otherData"]["clocks"].get<std::string>().find("never compared"),
            std::string::npos);
}

TEST(Trace, NamesRanksAndModelsAndCountsLossAndNorm) {
  auto steps = timed_steps(3);
  steps[2].workers[0].loss = kNaN;
  const Json trace = trace_of(steps);
  std::set<std::string> names;
  for (const Json& e : of_kind(trace, "M")) {
    if (e["args"].contains("name")) names.insert(e["args"]["name"]);
  }
  EXPECT_EQ(names, (std::set<std::string>{"rank 4", "rank 5", "module 0"}));
  const auto counters = of_kind(trace, "C");
  ASSERT_EQ(counters.size(), 7U) << "a loss that is no number is left out";
  EXPECT_EQ(counters[0]["name"], "loss");
  EXPECT_EQ(counters[0]["args"]["loss"], 0.5);
  EXPECT_EQ(counters[1]["name"], "grad_norm");
}

TEST(Trace, MicroBatchesAddUpToTheirPhases) {
  auto steps = timed_steps(2);
  // The third takes what rounding left; of a phase that is longer the rest is told by itself.
  steps[1].workers[0].times.micro = {
      {0.0001F, 0.0003F, 0.0004F}, {0.0001F, 0.0003F, 0.0004F}, {0.0002F, 0.0004F, 0.0004F}};
  std::map<std::string, std::pair<int, double>> sums;
  for (const Json& e : of_kind(trace_of(steps), "X")) {
    if (e["pid"] != 4) continue;
    auto& [micro, sum] = sums[e["name"]];
    micro += e["args"].contains("micro_batch");
    sum += e["dur"].get<double>();
  }
  EXPECT_EQ(sums["data"].first, 3);
  EXPECT_EQ(sums["forward"].first, 3);
  EXPECT_EQ(sums["backward"].first, 3);
  EXPECT_NEAR(sums["data"].second, 400, 1e-6);
  EXPECT_NEAR(sums["forward"].second, 1000, 1e-6);
  EXPECT_NEAR(sums["backward"].second, 1600, 1e-6) << "1200 of it in micro-batches";
}

TEST(Trace, MarksFindingsAtTheirFirstStep) {
  Finding one = finding("slow-worker", Severity::kWarning);
  one.first_step = 2;
  Finding all = finding("loss-event", Severity::kInfo);
  all.ranks.clear();
  all.first_step = 99;
  const auto marks = of_kind(trace_of(timed_steps(4), {.note = "", .findings = {all, one}}), "i");
  ASSERT_EQ(marks.size(), 2U);
  EXPECT_EQ(marks[0]["name"], "Title of slow-worker");
  EXPECT_EQ(marks[0]["pid"], 4);
  EXPECT_EQ(marks[0]["ts"], 11500);
  EXPECT_EQ(marks[0]["args"]["check"], "slow-worker");
  EXPECT_EQ(marks[1]["s"], "g");
  EXPECT_EQ(marks[1]["ts"], 3 * 11500) << "after the last step";
}

TEST(Trace, ModelsBeginTogether) {
  auto steps = timed_steps(3);
  auto second = timed_steps(2);
  for (StepRecord& s : second) s.model.module = 1;
  steps.insert(steps.end(), second.begin(), second.end());
  const Json trace = trace_of(steps);
  std::map<int, double> first;
  for (const Json& e : of_kind(trace, "X")) first.emplace(e["tid"].get<int>(), e["ts"]);
  EXPECT_EQ(first, (std::map<int, double>{{0, 0}, {1, 0}}));
  EXPECT_EQ(of_kind(trace, "C").at(0)["name"], "loss of module 0");
}

TEST(Trace, IsWrittenToAFileAndReplacesNothingElse) {
  const TempFolder folder;
  make_run(folder / "run", timed_steps(3));
  const auto file = (folder / "trace.json").string();
  for (int times = 0; times < 2; ++times) {
    const CommandResult ran = run({"export", (folder / "run").string(), "--trace", "-o", file});
    EXPECT_EQ(ran.code, kOk) << ran.err;
    EXPECT_EQ(ran.out, "");
    EXPECT_EQ(Json::parse(read_file(file))["displayTimeUnit"], "ms");
  }
  const auto database = (folder / "run/presum.db").string();
  expect_refusal({"export", database, "--trace", "-o", database}, "left alone");
  expect_refusal({"export", database, "--trace", "-o", folder.path().string()}, "folder");
  expect_refusal({"export", database, "--trace", "--table", "steps"}, "--trace");
  expect_refusal({"export", database, "-o", file}, "--trace");
}

TEST(Trace, ARunWithoutTimesIsOneLine) {
  const TempFolder folder;
  make_run(folder / "run", steps_of(3, 1));
  const auto file = folder / "trace.json";
  expect_refusal({"export", (folder / "run").string(), "--trace"}, "run has no times of steps");
  expect_refusal({"export", (folder / "run").string(), "--trace", "-o", file.string()}, "no times");
  EXPECT_FALSE(std::filesystem::exists(file));
}

}  // namespace
}  // namespace presum::cli
