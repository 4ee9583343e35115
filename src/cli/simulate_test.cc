// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/testing.h"

namespace presum::cli {
namespace {

CommandResult simulate(std::vector<std::string> args) {
  args.insert(args.begin(), "simulate");
  return run(args);
}

const std::vector<std::string> kShort = {"--steps", "2e3",    "--workers", "2,3",      "--null",
                                         "heavy",   "--seed", "7",         "--trials", "9"};

std::vector<std::string> with(std::vector<std::string> args, const std::string& option,
                              const std::string& value) {
  args.insert(args.end(), {option, value});
  return args;
}

TEST(Simulate, RefusesWhatItCannotSimulate) {
  EXPECT_EQ(simulate({"--workers", "1"}).code, kNoVerdict);
  EXPECT_EQ(simulate({"--workers", "2,0"}).code, kNoVerdict);
  EXPECT_EQ(simulate({"--steps", "0"}).code, kNoVerdict);
  EXPECT_EQ(simulate({"--steps", "nan"}).code, kNoVerdict);
  EXPECT_EQ(simulate({"--null", "uniform"}).code, kNoVerdict);
}

TEST(Simulate, JsonHoldsBothTables) {
  const CommandResult ran = simulate(with(kShort, "--format", "json"));
  ASSERT_EQ(ran.code, kOk);
  const auto json = nlohmann::json::parse(ran.out);
  EXPECT_EQ(json["schema_version"], 1);
  ASSERT_EQ(json["false_alarms"].size(), 2);
  EXPECT_EQ(json["false_alarms"][1]["workers"], 3);
  EXPECT_EQ(json["false_alarms"][1]["noise"], "heavy");
  EXPECT_EQ(json["false_alarms"][1]["steps"], 2000);
  EXPECT_EQ(json["false_alarms"][1]["alarms"]["count"], 0);
  EXPECT_EQ(json["delays"].size(), 11 + 13);  // two workers have one cosine
  EXPECT_GT(json["delays"][0]["median"], json["delays"][4]["median"]);
}

TEST(Simulate, SaysHowFarItIsWhereNobodyWatchesATerminal) {
  const CommandResult ran = simulate(kShort);
  ASSERT_EQ(ran.code, kOk);
  EXPECT_EQ(ran.err.find("1/26 healthy, heavy, 2 workers\n2/26 healthy, heavy, 3 workers\n"), 0U)
      << ran.err;
  EXPECT_NE(ran.err.find("\n3/26 loss +0.5 sd, 2 workers\n"), std::string::npos) << ran.err;
  EXPECT_TRUE(ran.err.ends_with("\n26/26 all read one set, 3 workers\n")) << ran.err;
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 26);
}

TEST(Simulate, BoundsAreReadable) {
  for (const char* steps : {"1e13", "0.5", "nan", "many"}) {
    const CommandResult ran = simulate({"--steps", steps});
    EXPECT_EQ(ran.code, kNoVerdict);
    EXPECT_NE(ran.err.find(std::string(steps) + " is not a number from 1 to 1e12 ("),
              std::string::npos)
        << ran.err;
  }
  const CommandResult help = simulate({"--help"});
  EXPECT_EQ(help.out.find("000000000"), std::string::npos) << help.out;
  EXPECT_NE(help.out.find("1 to 1e12"), std::string::npos) << help.out;
}

TEST(Simulate, PlaysRecordedStepsInOtherOrders) {
  const TempFolder folder;
  FakeClock clock;
  {
    auto writer = runlog::Writer::open(folder / "run", clock.function(), runlog::Journal::kWal);
    ASSERT_TRUE(writer) << writer.error().message;
    for (std::uint64_t s = 0; s < 30; ++s) {
      StepRecord step = step_of(s, 2);
      step.workers[1].loss += 0.01 * static_cast<double>(s % 7);
      step.workers_expected = 2;
      ASSERT_TRUE(writer->add(step));
    }
    ASSERT_TRUE(writer->close());
  }
  const CommandResult ran = simulate(
      {"--recorded", folder / "run", "--level", "100", "--steps", "2000", "--format", "json"});
  ASSERT_EQ(ran.code, kOk) << ran.err;
  const auto rows = nlohmann::json::parse(ran.out)["false_alarms"];
  ASSERT_EQ(rows.size(), 2);
  EXPECT_EQ(rows[0]["noise"], "30 recorded steps, orders of 1");
  EXPECT_EQ(rows[1]["noise"], "30 recorded steps, orders of 20");
  EXPECT_EQ(rows[0]["workers"], 2);
  EXPECT_LE(rows[0]["alarms"]["count"], 20) << "the promise";

  EXPECT_EQ(simulate({"--recorded", folder / "none"}).code, kNoVerdict);
  EXPECT_EQ(simulate({"--level", "100"}).code, kNoVerdict);
}

TEST(Simulate, TextHoldsTheSameNumbersAndDependsOnTheSeedAlone) {
  const CommandResult once = simulate(kShort);
  const CommandResult again = simulate(kShort);
  ASSERT_EQ(once.code, kOk);
  EXPECT_EQ(once.out, again.out);
  EXPECT_NE(once.out.find("heavy"), std::string::npos);
  EXPECT_NE(once.out.find("loss +0.5 sd"), std::string::npos);
  EXPECT_EQ(once.out.find("persistent"), std::string::npos);
}

}  // namespace
}  // namespace presum::cli
