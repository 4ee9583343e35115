// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/testing.h"

namespace presum::cli {
namespace {

const std::string kIgnoresDuplicates =
    R"({"ignore": [{"check": "duplicate-data", "reason": "<small> data", "expires": "2999-12-31"}]})";

struct Folder {
  Folder() {
    make_run(path / "runs" / "bad", steps_of(30, 1), two_findings());
    make_run(path / "runs" / "deep" / "good", steps_of(30, 1));
    write_file(path / "baseline.json", kIgnoresDuplicates);
  }
  CommandResult check(std::vector<std::string> args) const {
    args.insert(args.begin(), {"check", (path / "runs").string()});
    return run(args);
  }
  TempFolder folder;
  Path path = folder / "x";
};

TEST(CheckFormats, OfAFolderEveryRunInItByItsPlace) {
  const Folder f;
  const CommandResult ran = f.check({});
  EXPECT_EQ(ran.code, 1);
  ASSERT_EQ(lines(ran.out).size(), 4U) << ran.out;
  EXPECT_EQ(lines(ran.out)[2].find("bad: inconsistent"), 0U);
  EXPECT_EQ(lines(ran.out)[3].find("deep/good: consistent"), 0U);
  std::filesystem::create_directories(f.path / "none");
  const CommandResult none = run({"check", (f.path / "none").string()});
  EXPECT_EQ(none.code, 2);
  EXPECT_EQ(lines(none.err).size(), 1U) << none.err;
}

TEST(CheckFormats, JsonHoldsTheJudgmentOfEveryRun) {
  const Folder f;
  const CommandResult ran =
      f.check({(f.path / "absent").string(), "--format", "json", "--fail-on", "critical"});
  EXPECT_EQ(ran.code, 1);
  const auto all = nlohmann::json::parse(ran.out);
  EXPECT_EQ(all["exit_code"], 1);
  EXPECT_EQ(all["fail_on"], "critical");
  ASSERT_EQ(all["runs"].size(), 3U);
  EXPECT_EQ(all["runs"][0]["exit_code"], 1);
  EXPECT_EQ(all["runs"][0]["failing"], 1);
  EXPECT_EQ(all["runs"][0]["judgment"]["findings"][0]["check"], "duplicate-data");
  EXPECT_EQ(all["runs"][1]["run"], (f.path / "runs" / "deep" / "good").string());
  EXPECT_EQ(all["runs"][1]["judgment"]["verdict"], "consistent");
  EXPECT_TRUE(all["runs"][1]["error"].is_null());
  EXPECT_EQ(all["runs"][2]["exit_code"], 2);
  EXPECT_NE(all["runs"][2]["error"], "");
}

TEST(CheckFormats, GithubAnnotatesFindingsAndRunsThatWereNotJudged) {
  RunExtras extras = two_findings();
  extras.findings[0].title = "Ranks: 100%\n::error::x, y";
  const CommandResult ran = run_on("check", steps_of(30, 1), extras, {"--format", "github"});
  EXPECT_EQ(ran.code, 1);
  ASSERT_EQ(lines(ran.out).size(), 3U) << ran.out;
  EXPECT_EQ(lines(ran.out)[0].find(
                "::error title=presum%3A duplicate-data::run: Ranks: 100%25?::error::x, y"),
            0U)
      << ran.out;
  EXPECT_EQ(lines(ran.out)[1].find("::notice title=presum%3A loss-event::run: "), 0U) << ran.out;
  EXPECT_EQ(lines(ran.out)[2].find("run: inconsistent"), 0U);

  const CommandResult empty = run_on("check", {}, {}, {"--format", "github"});
  EXPECT_EQ(empty.code, 2);
  EXPECT_EQ(lines(empty.out)[0].find("::error title=presum%3A not judged::run: "), 0U) << empty.out;
}

TEST(CheckFormats, BelowTheLevelAWarningIsAnnotatedAsOne) {
  const RunExtras extras{.findings = {finding("zero-gradient", Severity::kWarning)}};
  const CommandResult ran =
      run_on("check", steps_of(30, 1), extras, {"--format", "github", "--fail-on", "critical"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.out.find("::warning title="), 0U) << ran.out;
}

TEST(CheckFormats, JunitHasACaseForEveryCheckAndTheVerdict) {
  const Folder f;
  const CommandResult ran = f.check({"--format", "junit"});
  EXPECT_EQ(ran.code, 1);
  const std::string& out = ran.out;
  const auto has = [&](const std::string& text) {
    EXPECT_NE(out.find(text), std::string::npos) << text << '\n' << out;
  };
  EXPECT_EQ(out.find("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"presum\" "),
            0U);
  has("<testsuite name=\"bad\" tests=\"8\" failures=\"1\" errors=\"0\" skipped=\"3\">");
  has("<testcase classname=\"bad\" name=\"duplicate-data\">\n      <failure message=\"Ranks 0, 1 "
      "and 5 read the same samples\">critical: ");
  has("<testcase classname=\"bad\" name=\"loss-event\">\n      <system-out>info: ");
  has("<testcase classname=\"deep/good\" name=\"missing-rank\"/>");
  has("<skipped message=\"not-triggered: no epoch has ended\"></skipped>");
  has("<skipped message=\"not-possible: no sampler was found\"></skipped>");
  has("<testcase classname=\"deep/good\" name=\"verdict\"/>");

  const CommandResult empty = run_on("check", {}, {}, {"--format", "junit"});
  EXPECT_EQ(empty.code, 2);
  EXPECT_NE(empty.out.find("name=\"verdict\">\n      <error message=\"no step was recorded"),
            std::string::npos)
      << empty.out;
}

TEST(CheckFormats, ABaselineTakesFindingsOutOfTheExitCodeAndSaysSo) {
  const Folder f;
  const std::string file = (f.path / "baseline.json").string();
  const CommandResult text = f.check({"--baseline", file});
  EXPECT_EQ(text.code, 0) << text.out;
  EXPECT_EQ(text.err, "");
  EXPECT_NE(text.out.find("bad: ignored until 2999-12-31: <small> data: duplicate-data: "),
            std::string::npos)
      << text.out;
  EXPECT_NE(
      text.out.find("bad: consistent but for 1 ignored finding; 30 steps, 2 of 2 ranks; 1 finding, "
                    "0 at or above warning"),
      std::string::npos)
      << text.out;
  const auto json = nlohmann::json::parse(f.check({"--baseline", file, "--format", "json"}).out);
  EXPECT_EQ(json["runs"][0]["ignored"][0]["check"], "duplicate-data");
  EXPECT_EQ(json["runs"][0]["ignored"][0]["reason"], "<small> data");
  EXPECT_EQ(json["runs"][0]["judgment"]["findings"].size(), 1U);
  const std::string junit = f.check({"--baseline", file, "--format", "junit"}).out;
  EXPECT_NE(junit.find("<skipped message=\"ignored until 2999-12-31: &lt;small&gt; data\">"),
            std::string::npos)
      << junit;
}

TEST(CheckFormats, ABaselineEntryThatAppliesToNothingIsNamed) {
  const Folder f;
  const CommandResult ran = run({"check", (f.path / "runs" / "deep").string(), "--baseline",
                                 (f.path / "baseline.json").string()});
  EXPECT_EQ(ran.code, 0);
  ASSERT_EQ(lines(ran.err).size(), 1U);
  EXPECT_NE(ran.err.find("duplicate-data was not found: remove its entry"), std::string::npos);
}

TEST(CheckFormats, WithoutItsFindingsARunMayLackEvidence) {
  const TempFolder folder;
  write_file(folder / "baseline.json", kIgnoresDuplicates);
  make_run(folder / "short", steps_of(2, 1), two_findings());
  const auto code = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args = {"check", (folder / "short").string()};
    args.insert(args.end(), more.begin(), more.end());
    return run(args).code;
  };
  EXPECT_EQ(code({}), 1);
  EXPECT_EQ(code({"--baseline", (folder / "baseline.json").string()}), 2);
}

TEST(CheckFormats, AWrongBaselineJudgesNothing) {
  const Folder f;
  write_file(
      f.path / "baseline.json",
      R"({"ignore": [{"check": "duplicate-data", "reason": "r", "expires": "2001-01-01"}]})");
  expect_refusal(
      {"check", (f.path / "runs").string(), "--baseline", (f.path / "baseline.json").string()},
      "expired on 2001-01-01");
}

}  // namespace
}  // namespace presum::cli
