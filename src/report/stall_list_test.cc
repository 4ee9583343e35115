// SPDX-License-Identifier: Apache-2.0
#include "report/stall_list.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace presum::report {
namespace {

StalledRank at(std::uint32_t rank, std::string where, std::string stack) {
  StalledRank r{.rank = rank, .where = std::move(where)};
  r.last.site = "fit() of train.py:7";
  r.last.stack = std::move(stack);
  return r;
}

StallRecord stall(std::uint32_t number, bool harmless = false) {
  StallRecord out;
  out.segment = 1;
  out.number = number;
  out.step = 10 * number;
  out.seconds = 61.5;
  out.harmless = harmless;
  out.sentence = "Rank 2 is in <evaluate()>";
  return out;
}

TEST(StallList, RanksAtOnePlaceAreOneEntryAndThoseAwaitedComeFirst) {
  StallRecord s = stall(1);
  s.ranks = {2};
  s.all = {at(0, "a waits", "x"), at(1, "a waits", "x"), at(2, "is in evaluate()", "y"),
           at(3, "a waits", "z")};
  const Json json = stalls_json(std::vector{s});
  EXPECT_EQ(json["count"], 1);
  const Json& one = json["list"][0];
  EXPECT_EQ(one["sentence"], s.sentence);
  EXPECT_EQ(one["seconds"], 61.5);
  EXPECT_EQ(one["ranks_left"], 0);
  const Json& places = one["places"];
  ASSERT_EQ(places.size(), 3U);
  EXPECT_EQ(places[0]["ranks"], (std::vector<int>{2}));
  EXPECT_EQ(places[0]["awaited"], true);
  EXPECT_EQ(places[0]["where"], "is in evaluate()");
  EXPECT_EQ(places[0]["site"], "fit() of train.py:7");
  EXPECT_EQ(places[0]["stack"], "y");
  EXPECT_EQ(places[1]["ranks"], (std::vector<int>{0, 1}));
  EXPECT_EQ(places[1]["awaited"], false);
}

TEST(StallList, HarmlessOnesComeLast) {
  const Json json = stalls_json(std::vector{stall(1, true), stall(2), stall(3, true), stall(4)});
  std::vector<int> steps;
  for (const Json& s : json["list"]) steps.push_back(s["step"].get<int>());
  EXPECT_EQ(steps, (std::vector<int>{20, 40, 10, 30}));
}

TEST(StallList, AStallEndsOrIsOpen) {
  std::vector<StallRecord> stalls = {stall(1), stall(2), stall(3)};
  stalls[1].over = true;
  const Json list = stalls_json(stalls)["list"];
  EXPECT_EQ(list[0]["end"], "open");
  EXPECT_EQ(list[1]["end"], "went-on");
  EXPECT_EQ(list[2]["end"], "open");
}

TEST(StallList, StaysBounded) {
  std::vector<StallRecord> stalls;
  for (std::uint32_t n = 1; n <= 100; ++n) {
    StallRecord& s = stalls.emplace_back(stall(n));
    for (std::uint32_t rank = 0; rank < 64; ++rank) {
      s.all.push_back(at(rank, "place " + std::to_string(rank), std::string(60'000, 's')));
    }
  }
  const Json json = stalls_json(stalls);
  EXPECT_EQ(json["count"], 100);
  EXPECT_EQ(json["list"].size(), 20U);
  EXPECT_EQ(json["list"][0]["ranks_left"], 48);
  EXPECT_LT(json.dump().size(), 1'500'000U);
  const auto stack = json["list"][0]["places"][0]["stack"].get<std::string>();
  EXPECT_TRUE(stack.ends_with("s\n..."));
}

TEST(StallList, NoStallIsAnEmptyList) { EXPECT_TRUE(stalls_json({})["list"].empty()); }

}  // namespace
}  // namespace presum::report
