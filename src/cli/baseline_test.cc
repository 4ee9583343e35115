// SPDX-License-Identifier: Apache-2.0
#include "cli/baseline.h"

#include <gtest/gtest.h>

#include "cli/testing.h"

namespace presum::cli {
namespace {

const std::string kEntry =
    R"("check": "duplicate-data", "reason": "small data", "expires": "2999-12-31")";

struct File {
  explicit File(const std::string& text) { write_file(path, text); }
  TempFolder folder;
  Path path = folder / "baseline.json";
};

Result<std::vector<BaselineEntry>> read(const std::string& text) {
  return read_baseline(File(text).path.string());
}

std::string why_not(const std::string& entry) {
  const auto result = read(R"({"ignore": [{)" + entry + "}]}");
  return result ? "" : result.error().message;
}

TEST(Baseline, HoldsWhatTheFileSays) {
  const auto entries =
      read(R"({"ignore": [{)" + kEntry + R"(, "ranks": [0, 3]}, {)" + kEntry + "}]}");
  ASSERT_TRUE(entries) << entries.error().message;
  ASSERT_EQ(entries->size(), 2U);
  EXPECT_EQ((*entries)[0].check, "duplicate-data");
  EXPECT_EQ((*entries)[0].reason, "small data");
  EXPECT_EQ((*entries)[0].expires, "2999-12-31");
  EXPECT_EQ((*entries)[0].ranks, std::vector<std::uint32_t>({0, 3}));
  EXPECT_FALSE((*entries)[1].ranks);
  const auto none = read(R"({"ignore": []})");
  ASSERT_TRUE(none);
  EXPECT_TRUE(none->empty());
}

TEST(Baseline, AppliesToItsCheckOnItsRanks) {
  const auto entries = read(R"({"ignore": [{)" + kEntry + R"(, "ranks": [0, 3]}]})");
  ASSERT_TRUE(entries);
  Finding found = finding("duplicate-data", Severity::kCritical);
  const auto applies = [&](std::vector<std::uint32_t> ranks) {
    found.ranks = std::move(ranks);
    return entry_for(*entries, found) != nullptr;
  };
  EXPECT_TRUE(applies({0, 3}));
  EXPECT_TRUE(applies({3}));
  EXPECT_FALSE(applies({0, 3, 4}));
  EXPECT_FALSE(applies({}));
  found.evidence = {{"too-consistent", {0, 4}, "", "{}"}};
  EXPECT_FALSE(applies({0, 3})) << "an effect on another rank";
  found.evidence = {{"too-consistent", {3}, "", "{}"}};
  EXPECT_TRUE(applies({0, 3}));
  found.check = "loss-mismatch";
  EXPECT_FALSE(applies({0, 3}));
  EXPECT_EQ(entry_for({}, found), nullptr);
}

TEST(Baseline, RefusesAnEntryThatIsNotWhole) {
  const auto expect_why = [](const std::string& entry, const std::string& why) {
    const std::string said = why_not(entry);
    EXPECT_NE(said.find("baseline.json: entry 1 " + why), std::string::npos) << said;
  };
  EXPECT_EQ(why_not(kEntry), "");
  expect_why(R"("reason": "r", "expires": "2999-12-31")", R"(names no check of presum: "")");
  expect_why(R"("check": "duplicate-dat", "reason": "r", "expires": "2999-12-31")",
             R"(names no check of presum: "duplicate-dat" (duplicate-data?))");
  expect_why(R"("check": "duplicate-data", "expires": "2999-12-31")", R"(needs "reason")");
  expect_why(R"("check": "duplicate-data", "reason": " ", "expires": "2999-12-31")",
             R"(needs "reason")");
  expect_why(R"("check": "duplicate-data", "reason": "r")", R"(needs "expires")");
  expect_why(kEntry + R"(, "rank": [1])", "has an unknown key rank (ranks?)");
  expect_why(kEntry + R"(, "ranks": [])", "needs a list of rank numbers");
  expect_why(kEntry + R"(, "ranks": [-1])", "needs a list of rank numbers");
  expect_why(kEntry + R"(, "ranks": [4294967296])", "needs a list of rank numbers");
  expect_why(kEntry + R"(, "ranks": "3")", "needs a list of rank numbers");
}

TEST(Baseline, RefusesDatesThatArePastOrNone) {
  const auto dated = [](const std::string& date) {
    return why_not(R"("check": "duplicate-data", "reason": "r", "expires": ")" + date + '"');
  };
  EXPECT_NE(dated("2001-01-31").find("expired on 2001-01-31"), std::string::npos);
  for (const char* none : {"", "tomorrow", "2999-13-01", "2999-02-30", "2999-1-011", "2999/01/01",
                           "99-01-2999", "2999-01-01T00:00", "+999-01-01"}) {
    EXPECT_NE(dated(none).find(R"(needs "expires")"), std::string::npos) << none;
  }
}

TEST(Baseline, RefusesAFileThatIsNone) {
  EXPECT_FALSE(read(R"({"ignore": [)" + std::string(200'000, '[')));
  EXPECT_FALSE(
      read(R"({"ignore": [)" + std::string(200'000, '[') + std::string(200'000, ']') + "]}"));
  for (const char* text : {"", "[]", "{", R"({"ignored": []})", R"({"ignore": {}})",
                           R"({"ignore": [], "also": 1})", "\xff\xfe"}) {
    const auto result = read(text);
    ASSERT_FALSE(result) << text;
    EXPECT_NE(result.error().message.find("is not a baseline"), std::string::npos) << text;
  }
  const TempFolder folder;
  for (const Path& path : {folder / "absent.json", folder / "."}) {
    const auto result = read_baseline(path.string());
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::kIo);
  }
}

}  // namespace
}  // namespace presum::cli
