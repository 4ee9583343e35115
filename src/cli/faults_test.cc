// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "cli/cli.h"

namespace presum::cli {
namespace {

struct CommandResult {
  int code;
  std::string out;
  std::string err;
};

CommandResult run(std::vector<std::string> args) {
  std::ostringstream out;
  std::ostringstream err;
  args.insert(args.begin(), "faults");
  const int code = main(args, out, err);
  return {code, out.str(), err.str()};
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
  const CommandResult ran = run({});
  EXPECT_EQ(ran.code, kNoVerdict);
  EXPECT_EQ(ran.out, "");
  EXPECT_NE(ran.err.find("--simulate"), std::string::npos);
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1);
}

TEST(Faults, RefusesWhatItCannotSimulate) {
  EXPECT_EQ(run({"--simulate", "--workers", "1"}).code, kNoVerdict);
  EXPECT_EQ(run({"--simulate", "--workers", "2,0"}).code, kNoVerdict);
  EXPECT_EQ(run({"--simulate", "--steps", "0"}).code, kNoVerdict);
  EXPECT_EQ(run({"--simulate", "--steps", "nan"}).code, kNoVerdict);
  EXPECT_EQ(run({"--simulate", "--null", "uniform"}).code, kNoVerdict);
}

TEST(Faults, JsonHoldsBothTables) {
  const CommandResult ran = run(with(kShort, "--format", "json"));
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
  const CommandResult ran = run(kShort);
  ASSERT_EQ(ran.code, kOk);
  EXPECT_EQ(ran.err.find("1/26 healthy, heavy, 2 workers\n2/26 healthy, heavy, 3 workers\n"), 0U)
      << ran.err;
  EXPECT_NE(ran.err.find("\n3/26 loss +0.5 sd, 2 workers\n"), std::string::npos) << ran.err;
  EXPECT_TRUE(ran.err.ends_with("\n26/26 all read one set, 3 workers\n")) << ran.err;
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 26);
}

TEST(Faults, BoundsAreReadable) {
  for (const char* steps : {"1e13", "0.5", "nan", "many"}) {
    const CommandResult ran = run({"--simulate", "--steps", steps});
    EXPECT_EQ(ran.code, kNoVerdict);
    EXPECT_NE(ran.err.find(std::string(steps) + " is not a number from 1 to 1e12 ("),
              std::string::npos)
        << ran.err;
  }
  const CommandResult help = run({"--help"});
  EXPECT_EQ(help.out.find("000000000"), std::string::npos) << help.out;
  EXPECT_NE(help.out.find("1 to 1e12"), std::string::npos) << help.out;
}

TEST(Faults, TextHoldsTheSameNumbersAndDependsOnTheSeedAlone) {
  const CommandResult once = run(kShort);
  const CommandResult again = run(kShort);
  ASSERT_EQ(once.code, kOk);
  EXPECT_EQ(once.out, again.out);
  EXPECT_NE(once.out.find("heavy"), std::string::npos);
  EXPECT_NE(once.out.find("loss +0.5 sd"), std::string::npos);
  EXPECT_EQ(once.out.find("persistent"), std::string::npos);
}

}  // namespace
}  // namespace presum::cli
