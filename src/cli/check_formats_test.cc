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
  const std::string why = all["runs"][2]["error"];
  EXPECT_NE(why.find("absent"), std::string::npos) << why;
  EXPECT_TRUE(all["runs"][2]["judgment"].is_null());
  EXPECT_TRUE(all["runs"][2]["ignored"].empty());
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
  EXPECT_EQ(lines(ran.out)[2].find("presum: run: inconsistent"), 0U);

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
  has("<testcase classname=\"deep/good\" name=\"verdict\">\n      <system-out>deep/good: "
      "consistent");

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
  EXPECT_NE(ran.err.find("entry 1 (duplicate-data) ignored no finding"), std::string::npos);
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
  const std::string file = (f.path / "baseline.json").string();
  expect_refusal({"check", (f.path / "runs").string(), "--baseline", file},
                 "expired on 2001-01-01");
  const CommandResult junit = f.check({"--baseline", file, "--format", "junit"});
  EXPECT_EQ(junit.code, 2);
  EXPECT_NE(junit.out.find("expired on 2001-01-01"), std::string::npos) << junit.out;
  const CommandResult github = f.check({"--baseline", file, "--format", "github"});
  EXPECT_EQ(github.out.find("::error title="), 0U) << github.out;
}

TEST(CheckFormats, NoRunInAFolderIsPassedOver) {
  const TempFolder folder;
  const Path runs = folder / "runs";
  make_run(runs / "good", steps_of(30, 1));
  make_run(runs / "good" / "inner", steps_of(30, 1));
  make_run(folder / "elsewhere" / "bad", steps_of(30, 1), two_findings());
  const auto checked = [&] { return run({"check", runs.string()}); };
  std::filesystem::create_directory_symlink(runs, runs / "loop");
  EXPECT_EQ(checked().code, 0);
  EXPECT_EQ(lines(checked().out).size(), 2U) << checked().out;
  std::filesystem::create_directory_symlink(folder / "elsewhere", runs / "linked");
  EXPECT_EQ(checked().code, 1);
  std::filesystem::remove(runs / "linked");
  std::filesystem::create_directories(runs / "gone");
  std::filesystem::create_symlink("nowhere", runs / "gone" / "presum.db");
  EXPECT_EQ(checked().code, 2);
}

TEST(CheckFormats, EveryRunIsJudgedOnce) {
  const Folder f;
  const std::string all = (f.path / "runs").string();
  const auto said = [](std::vector<std::string> args) {
    args.insert(args.begin(), "check");
    return lines(run(args).out);
  };
  const std::size_t once = said({all}).size();
  EXPECT_EQ(said({all, all}).size(), once);
  EXPECT_EQ(said({all, all + "/deep", all + "/bad", all + "/bad/presum.db"}).size(), once);
  EXPECT_EQ(said({all + "/bad/presum.db", all + "/"}).size(), once);
  EXPECT_EQ(run({"check", all + "/deep", all + "/deep"}).code, 0);
}

TEST(CheckFormats, RunsOfOneNameAreToldApart) {
  const TempFolder folder;
  const std::string a = (folder / "a" / "run").string();
  const std::string b = (folder / "b" / "run").string();
  make_run(a, steps_of(30, 1));
  make_run(b, steps_of(30, 1));
  const std::vector<std::string> said = lines(run({"check", a, b}).out);
  ASSERT_EQ(said.size(), 2U);
  EXPECT_EQ(said[0].find(a + ": "), 0U) << said[0];
  EXPECT_EQ(said[1].find(b + ": "), 0U) << said[1];
}

// Names and checks of a run are untrusted.
TEST(CheckFormats, NamesNeitherCommandNorBreakTheXml) {
  const TempFolder folder;
  const std::string path = (folder / "::error x::##[error]<&\"\xEF\xBF\xBF").string();
  make_run(path, steps_of(30, 1), {.findings = {finding("a\"<b", Severity::kWarning)}});
  for (const std::string& line : lines(run({"check", path, "--format", "github"}).out)) {
    EXPECT_TRUE(line.starts_with("::error title=presum") || line.starts_with("presum: ")) << line;
    EXPECT_EQ(line.find("##["), std::string::npos) << line;
  }
  const std::string junit = run({"check", path, "--format", "junit"}).out;
  EXPECT_NE(junit.find("name=\"a&quot;&lt;b\""), std::string::npos) << junit;
  EXPECT_NE(junit.find("[error]&lt;&amp;&quot;?\""), std::string::npos) << junit;
}

TEST(CheckFormats, AViolatedCheckThatAnotherExplainsDoesNotPass) {
  RunExtras extras = two_findings();
  extras.checks.push_back({"pair-too-similar", CheckRecord::State::kFound, ""});
  const CommandResult ran = run_on("check", steps_of(30, 1), extras, {"--format", "junit"});
  EXPECT_NE(ran.out.find("name=\"pair-too-similar\">\n      <skipped message=\"violated: "),
            std::string::npos)
      << ran.out;
  EXPECT_NE(ran.out.find("; also pair-too-similar, too-consistent"), std::string::npos);
}

}  // namespace
}  // namespace presum::cli
