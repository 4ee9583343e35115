// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/testing.h"

namespace presum::cli {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

CommandResult audit(Words words) {
  words.insert(words.begin(), "audit");
  return run(words);
}

TEST(AuditVerb, ShowsWhatOrdersChangeAndThatTheExactSumDoesNot) {
  const CommandResult ran = audit({"--elements", "2e4", "--ranks", "8"});
  EXPECT_EQ(ran.code, kOk) << ran.err;
  EXPECT_NE(ran.out.find("gradients fp32 values of 8 ranks, seed 1, 20,000 elements"),
            std::string::npos);
  EXPECT_NE(ran.out.find("of the elements change; of the exact sum none."), std::string::npos);
  EXPECT_NE(ran.out.find("8 x 1 | 4 x 2"), std::string::npos);
  EXPECT_EQ(ran.err, "");
}

TEST(AuditVerb, WritesJsonForEveryDtypeAndDistribution) {
  for (const char* dtype : {"fp32", "fp64", "bf16", "fp16"}) {
    for (const char* distribution : {"gradients", "gaussian", "lognormal", "wide"}) {
      const CommandResult ran = audit({"--elements", "3000", "--ranks", "4", "--dtype", dtype,
                                       "--distribution", distribution, "--format", "json"});
      ASSERT_EQ(ran.code, kOk) << ran.err;
      const Json json = Json::parse(ran.out);
      EXPECT_EQ(json["dtype"], dtype);
      EXPECT_EQ(json["ways"].back()["way"], "exact");
      EXPECT_EQ(json["ways"].back()["differing"], 0);
      EXPECT_EQ(json["changes"].back()["elements"], 0);
    }
  }
}

TEST(AuditVerb, RefusesBadUseInOneLine) {
  const auto refused = [](const Words& words) {
    const CommandResult ran = audit(words);
    EXPECT_EQ(ran.code, kNoVerdict);
    EXPECT_EQ(ran.out, "");
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1);
    return ran.err;
  };
  EXPECT_EQ(refused({"--dtype", "int8"}), "presum audit: --dtype is fp32, fp64, bf16 or fp16\n");
  EXPECT_EQ(refused({"--elements", "0"}),
            "presum audit: --elements is a whole number from 1 to 1e12\n");
  EXPECT_EQ(refused({"--elements", "nan"}),
            "presum audit: --elements is a whole number from 1 to 1e12\n");
  EXPECT_EQ(refused({"--elements", "1.5"}),
            "presum audit: --elements is a whole number from 1 to 1e12\n");
  EXPECT_EQ(refused({"--elements", "-3"}),
            "presum audit: --elements is a whole number from 1 to 1e12\n");
  EXPECT_NE(refused({"--seed", "-1"}).find("--seed"), std::string::npos);
  EXPECT_NE(refused({"--ranks", "2.5"}).find("--ranks"), std::string::npos);
  EXPECT_NE(refused({"--ranks", "-2"}).find("--ranks"), std::string::npos);
  EXPECT_EQ(refused({"--ranks", "5000"}), "presum audit: 5000 ranks (1 to 1024 are possible)\n");
  EXPECT_EQ(refused({"--ranks", "0"}), "presum audit: 0 ranks (1 to 1024 are possible)\n");
}

}  // namespace
}  // namespace presum::cli
