// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/testing.h"

namespace presum::cli {
namespace {

CommandResult faults(std::vector<std::string> args) {
  args.insert(args.begin(), "faults");
  return run(args);
}

const std::vector<std::string> kShort = {"--simulate", "--steps",  "2e3",   "--workers",
                                         "2,3",        "--null",   "heavy", "--seed",
                                         "7",          "--trials", "9"};

std::vector<std::string> with(std::vector<std::string> args, const std::string& option,
                              const std::string& value) {
  args.insert(args.end(), {option, value});
  return args;
}

TEST(Faults, SaysThatTheBenchmarkNeedsPython) {
  const CommandResult ran = faults({});
  EXPECT_EQ(ran.code, kNoVerdict);
  EXPECT_EQ(ran.out, "");
  EXPECT_NE(ran.err.find("--simulate"), std::string::npos);
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1);
}

TEST(Faults, RefusesWhatItCannotSimulate) {
  EXPECT_EQ(faults({"--simulate", "--workers", "1"}).code, kNoVerdict);
  EXPECT_EQ(faults({"--simulate", "--workers", "2,0"}).code, kNoVerdict);
  EXPECT_EQ(faults({"--simulate", "--steps", "0"}).code, kNoVerdict);
  EXPECT_EQ(faults({"--simulate", "--steps", "nan"}).code, kNoVerdict);
  EXPECT_EQ(faults({"--simulate", "--null", "uniform"}).code, kNoVerdict);
}

TEST(Faults, JsonHoldsBothTables) {
  const CommandResult ran = faults(with(kShort, "--format", "json"));
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

TEST(Faults, SaysHowFarItIsWhereNobodyWatchesATerminal) {
  const CommandResult ran = faults(kShort);
  ASSERT_EQ(ran.code, kOk);
  EXPECT_EQ(ran.err.find("1/26 healthy, heavy, 2 workers\n2/26 healthy, heavy, 3 workers\n"), 0U)
      << ran.err;
  EXPECT_NE(ran.err.find("\n3/26 loss +0.5 sd, 2 workers\n"), std::string::npos) << ran.err;
  EXPECT_TRUE(ran.err.ends_with("\n26/26 all read one set, 3 workers\n")) << ran.err;
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 26);
}

TEST(Faults, BoundsAreReadable) {
  for (const char* steps : {"1e13", "0.5", "nan", "many"}) {
    const CommandResult ran = faults({"--simulate", "--steps", steps});
    EXPECT_EQ(ran.code, kNoVerdict);
    EXPECT_NE(ran.err.find(std::string(steps) + " is not a number from 1 to 1e12 ("),
              std::string::npos)
        << ran.err;
  }
  const CommandResult help = faults({"--help"});
  EXPECT_EQ(help.out.find("000000000"), std::string::npos) << help.out;
  EXPECT_NE(help.out.find("1 to 1e12"), std::string::npos) << help.out;
}

TEST(Faults, PlaysRecordedStepsInOtherOrders) {
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
  const CommandResult ran = faults({"--simulate", "--recorded", folder / "run", "--level", "100",
                                    "--steps", "2000", "--format", "json"});
  ASSERT_EQ(ran.code, kOk) << ran.err;
  const auto rows = nlohmann::json::parse(ran.out)["false_alarms"];
  ASSERT_EQ(rows.size(), 2);
  EXPECT_EQ(rows[0]["noise"], "30 recorded steps, orders of 1");
  EXPECT_EQ(rows[1]["noise"], "30 recorded steps, orders of 20");
  EXPECT_EQ(rows[0]["workers"], 2);
  EXPECT_LE(rows[0]["alarms"]["count"], 20) << "the promise";

  EXPECT_EQ(faults({"--simulate", "--recorded", folder / "none"}).code, kNoVerdict);
  EXPECT_EQ(faults({"--simulate", "--level", "100"}).code, kNoVerdict);
}

TEST(Faults, TextHoldsTheSameNumbersAndDependsOnTheSeedAlone) {
  const CommandResult once = faults(kShort);
  const CommandResult again = faults(kShort);
  ASSERT_EQ(once.code, kOk);
  EXPECT_EQ(once.out, again.out);
  EXPECT_NE(once.out.find("heavy"), std::string::npos);
  EXPECT_NE(once.out.find("loss +0.5 sd"), std::string::npos);
  EXPECT_EQ(once.out.find("persistent"), std::string::npos);
}

}  // namespace
}  // namespace presum::cli
