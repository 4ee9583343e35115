// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/testing.h"

namespace presum::cli {
namespace {

CommandResult compare_runs(const TempFolder& folder, const std::vector<std::string>& more = {}) {
  std::vector<std::string> args = {"compare", (folder / "a").string(), (folder / "b").string()};
  args.insert(args.end(), more.begin(), more.end());
  return run(args);
}

TEST(Compare, IdenticalRunsExitWith0) {
  const TempFolder folder;
  make_run(folder / "a", steps_of(3, 1));
  make_run(folder / "b", steps_of(3, 1));
  const CommandResult ran = compare_runs(folder);
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(lines(ran.out).at(0),
            "identical in all that was compared, at 3 common steps; not compared: data, random "
            "generators, parameters, token weight, reduction, final parameters");
}

TEST(Compare, DifferentRunsExitWith1AndNameTheFirstDifference) {
  const TempFolder folder;
  auto steps = steps_of(3, 1);
  make_run(folder / "a", steps);
  steps[1].workers[1].fingerprint = 77;
  make_run(folder / "b", steps);
  const CommandResult ran = compare_runs(folder);
  EXPECT_EQ(ran.code, 1);
  EXPECT_EQ(lines(ran.out).at(0),
            "different: identical up to step 0; first difference at step 1, local gradient, rank "
            "5: gradient");
  const auto json = nlohmann::json::parse(compare_runs(folder, {"--format", "json"}).out);
  EXPECT_EQ(json["models"][0]["first_stage"], "local-gradient");
}

TEST(Compare, RunsWithNothingInCommonExitWith2) {
  const TempFolder folder;
  make_run(folder / "a", steps_of(3, 1));
  make_run(folder / "b", {});
  const CommandResult ran = compare_runs(folder);
  EXPECT_EQ(ran.code, 2);
  EXPECT_EQ(lines(ran.out).at(0), "not comparable: B holds no step");
}

TEST(Compare, WritesAPageWithBothRunsAndTheComparison) {
  const TempFolder folder;
  make_run(folder / "a", steps_of(3, 1));
  make_run(folder / "b", steps_of(3, 2));
  const auto page = folder / "page.html";
  EXPECT_EQ(compare_runs(folder, {"-o", page.string()}).code, 1);
  EXPECT_NE(read_file(page).find(R"("comparison":{"outcome":"different")"), std::string::npos);
  const CommandResult refused = compare_runs(folder, {"-o", folder.path().string()});
  EXPECT_EQ(refused.code, 2);
  EXPECT_EQ(refused.out, "");
}

TEST(Compare, TellsHowLongItTookAndCallsTheRunsIdentical) {
  const TempFolder folder;
  auto steps = steps_of(10, 1);
  for (const auto& [name, own] : {std::pair("a", 10.0), std::pair("b", 12.0)}) {
    for (StepRecord& s : steps)
      s.workers[0].times = times_of(s.step % 2 == 0 ? own : own + 0.001, 3);
    make_run(folder / name, steps);
  }
  const CommandResult ran = compare_runs(folder);
  EXPECT_EQ(ran.code, 0);
  EXPECT_NE(ran.out.find("time, at 10 common steps (makes no runs different): own time"),
            std::string::npos)
      << ran.out;
  EXPECT_NE(ran.out.find("most of it in backward"), std::string::npos);
  EXPECT_NE(ran.out.find("own time   10.00  12.00  +2.00  +2.00 to +2.00"), std::string::npos);
}

}  // namespace
}  // namespace presum::cli
