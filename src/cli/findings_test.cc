// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "cli/testing.h"
#include "presum/audit.h"

namespace presum::cli {
namespace {

TEST(Findings, TextSaysEverythingWorstFirst) {
  const CommandResult ran = run_on("findings", steps_of(9, 1), two_findings());
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.err, "");
  EXPECT_EQ(std::regex_replace(ran.out, std::regex("blame [^ ]+"), "blame RUN"),
            "run: inconsistent, 1 critical finding, 1 note\n"
            "9 steps, 2 of 2 ranks\n"
            "\n"
            "critical: Ranks 0, 1 and 5 read the same samples, since step 2, last seen at 8\n"
            "    duplicate-data, ranks 0-1,5 on login, node[08-09], confidence 99%\n"
            "    matters    Ranks that read the same data do the work of one: the effective batch "
            "is smaller than you think.\n"
            "    evidence   shared samples: 9007199254740993; share: 0.123\n"
            "    suspects   one seed\n"
            "    do         Give each rank its own shard.\n"
            "    also seen  Ranks 0-1 differed less than their micro-batches allow "
            "(too-consistent)\n"
            "    also seen  pair-too-similar\n"
            "    resembles  pytorch/pytorch#31771\n"
            "    more       presum explain duplicate-data\n"
            "\n"
            "info: Title of loss-event, at step 1\n"
            "    loss-event, rank 4, confidence 50%\n"
            "    more       presum explain loss-event; presum blame RUN --step 1 --rank 4\n"
            "\n"
            "found: duplicate-data\n"
            "passed: nonfinite-gradient, missing-rank\n"
            "not triggered: epoch-not-set (no epoch has ended)\n"
            "not possible: sampler-mismatch, overlapping-data (no sampler was found)\n"
            "\n"
            "notes of the collection:\n"
            "    rank 5: sparse\n");
}

TEST(Findings, CommandsNameTheRun) {
  const TempFolder folder;
  const auto more = [&](const std::filesystem::path& path) {
    make_run(path, steps_of(9, 1), {.findings = {finding("rank-outlier", Severity::kWarning)}});
    return run({"findings", path.string()}).out;
  };
  const auto plain = folder / "plain";
  EXPECT_NE(more(plain).find("presum blame " + plain.string() + " --step"), std::string::npos);
  EXPECT_NE(more(folder / "two words").find("presum blame RUN --step"), std::string::npos);
}

TEST(Findings, TextCountsTheFindingsOfEachSeverity) {
  const TempFolder folder;
  const Finding critical = finding("parameter-desync", Severity::kCritical);
  const Finding warning = finding("data-coverage", Severity::kWarning);
  const auto first_line = [&](const char* name, std::vector<Finding> findings) {
    make_run(folder / name, steps_of(9, 1), {.findings = std::move(findings)});
    return lines(run({"findings", (folder / name).string()}).out).front();
  };
  EXPECT_EQ(first_line("one", {critical, warning}),
            "one: inconsistent, 1 critical finding, 1 warning");
  EXPECT_EQ(first_line("two", {critical, critical, warning, warning}),
            "two: inconsistent, 2 critical findings, 2 warnings");
}

TEST(Findings, JsonHasTheDocumentedFieldsInTheirOrder) {
  const CommandResult ran =
      run_on("findings", steps_of(9, 1), two_findings(), {"--format", "json"});
  EXPECT_EQ(ran.code, 0);
  const auto json = nlohmann::ordered_json::parse(ran.out);
  EXPECT_EQ(keys(json),
            words("schema_version verdict coverage segments continuations findings checks audits"));
  EXPECT_EQ(json["schema_version"], 1);
  EXPECT_EQ(json["verdict"], "inconsistent");
  EXPECT_EQ(json["coverage"].dump(),
            R"({"steps_logged":9,"steps_lost":0,"workers_expected":2,"workers_seen":2,)"
            R"("checks":{"found":1,"passed":2,"not-triggered":1,"not-possible":2}})");
  ASSERT_EQ(json["segments"].size(), 1U);
  EXPECT_EQ(keys(json["segments"][0]),
            words("segment started presum closed preflight_exit_code incomplete packets"));
  EXPECT_EQ(json["segments"][0]["closed"], true);
  EXPECT_TRUE(json["segments"][0]["preflight_exit_code"].is_null());
  const auto& first = json["findings"][0];
  EXPECT_EQ(keys(first), words("check also severity ranks hosts first_step last_step equal_until "
                               "certain_step confidence title sentence consequence evidence_text "
                               "suspects evidence remedy resembles segment model_index dp_group "
                               "elsewhere"));
  EXPECT_EQ(first["severity"], "critical");
  EXPECT_EQ(first["ranks"].dump(), "[0,1,5]");
  EXPECT_EQ(first["evidence"][0]["values"].dump(),
            R"({"shared_samples":9007199254740993,"share":0.123456})");
  EXPECT_EQ(first["evidence"][1]["ranks"].dump(), "[0,1]");
  ASSERT_EQ(json["checks"].size(), 6U);
  EXPECT_EQ(json["checks"][5].dump(),
            R"({"check":"overlapping-data","state":"not-possible",)"
            R"("reason":"no sampler was found.","segment":1,"model_index":0,"dp_group":0})");
}

TEST(Findings, ShowWhatAuditsOfTheSumFound) {
  auto steps = steps_of(4, 1);
  for (const std::size_t audited : {0U, 2U}) {
    const AuditRecord audit{.elements = 200,
                            .differing = 25 + audited,
                            .relative_l2 = 3e-8,
                            .gradient = Accumulation::kF32,
                            .accumulation = Accumulation::kF32,
                            .order = SumOrder::kRing,
                            .division = Division::kOnce,
                            .repeat = Repeat::kEqual,
                            .ulps = UlpPercentiles{0, 1, 9, 64}};
    steps[audited].workers[0].audit = audit;
  }
  const CommandResult ran = run_on("findings", steps);
  EXPECT_NE(ran.out.find("the sum, audited 2 times in steps 0-2, 400 elements in all:\n"
                         "    fp32 gradients, added in fp32, order ring, division once\n"
                         "    13 % of the elements are not the correctly rounded ones, 0 are "
                         "wrong; relative L2 at most 3e-08\n"
                         "    units in the last place off: half at most 0, 99 % at most 9, largest "
                         "64\n"
                         "    repeated 2 times, with other bits never\n"),
            std::string::npos)
      << ran.out;
}

TEST(Findings, InsufficientEvidenceIsAnAnswer) {
  const CommandResult text = run_on("findings", {}, {.checks = {}});
  EXPECT_EQ(text.code, 0);
  EXPECT_EQ(text.out,
            "run: insufficient evidence: no step was recorded (was loss.backward() called after "
            "attach, on what the attached model itself returned? torch.autograd.grad is not seen; "
            "in manual mode before_reduction() and after_reduction() make a step), no "
            "finding\n0 steps, 0 of 0 ranks\n");
  const CommandResult json = run_on("findings", {}, {.checks = {}}, {"--format", "json"});
  EXPECT_EQ(json.code, 0);
  EXPECT_EQ(nlohmann::json::parse(json.out)["verdict"], "insufficient-evidence");
}

TEST(Findings, ASegmentIsJudgedAlone) {
  const TempFolder folder;
  make_run(folder / "run", steps_of(3, 1), two_findings());
  auto restarted = steps_of(40, 1);
  for (StepRecord& s : restarted) s.model.segment = 2;
  make_run(folder / "run", restarted);
  const auto file = (folder / "run").string();
  const CommandResult all = run({"findings", file});
  EXPECT_NE(all.out.find("43 steps, 2 of 2 ranks, 2 segments\n"), std::string::npos) << all.out;
  EXPECT_NE(all.out.find("found: duplicate-data (1 of 2)\n"), std::string::npos) << all.out;
  const CommandResult second = run({"findings", file, "--segment", "2"});
  EXPECT_EQ(second.out.find("run: consistent, no finding\n40 steps, 2 of 2 ranks\n"), 0U)
      << second.out;
  EXPECT_EQ(second.out.find("note"), std::string::npos) << "the note is of segment 1";
  expect_refusal({"findings", file, "--segment", "3"}, "no segment 3");
}

TEST(Findings, SayWhatAPreflightEndedWith) {
  const TempFolder folder;
  make_run(folder / "run", steps_of(9, 1), {.preflight = 0});
  const auto file = (folder / "run").string();
  EXPECT_EQ(run({"findings", file})
                .out.find("run: consistent, no finding\n9 steps, 2 of 2 ranks\n"
                          "preflight: ended with exit code 0 (consistent)\n\n"),
            0U);
  make_run(folder / "run", {}, {.preflight = 2});
  const CommandResult ran = run({"findings", file});
  EXPECT_NE(ran.out.find("preflight of segment 1: ended with exit code 0 ("), std::string::npos);
  EXPECT_NE(ran.out.find("preflight of segment 2: ended with exit code 2 (could not judge)\n"),
            std::string::npos)
      << ran.out;
}

TEST(Findings, SayWhichModelAndSegment) {
  const TempFolder folder;
  make_run(folder / "run", steps_of(3, 1), two_findings());
  make_run(folder / "run", {}, {.findings = {finding("rank-outlier", Severity::kWarning)}});
  const CommandResult ran = run({"findings", (folder / "run").string()});
  EXPECT_NE(ran.out.find("rank 4, segment 2, confidence"), std::string::npos) << ran.out;
}

TEST(Findings, NothingOfARunCanSteerTheTerminal) {
  const TempFolder folder;
  const std::string evil = "\x1b[2J\nforged";
  Finding f = finding(evil, Severity::kWarning);
  f.title = f.remedy = f.resembles = f.suspects = evil;
  f.also = f.hosts = {evil};
  f.evidence = {{evil, {}, evil, R"({"\u001b[2J":"\u001b[2J\nforged"})"}, {evil, {}, evil}};
  make_run(
      folder / "run", steps_of(1, 1),
      {.note = evil, .findings = {f}, .checks = {{evil, CheckRecord::State::kNotPossible, evil}}});
  for (const char* verb : {"findings", "check"}) {
    const CommandResult ran = run({verb, (folder / "run").string()});
    EXPECT_EQ(ran.out.find('\x1b'), std::string::npos) << ran.out;
    EXPECT_EQ(ran.out.find("\nforged"), std::string::npos) << ran.out;
    EXPECT_NE(ran.out.find("?[2J?forged"), std::string::npos) << ran.out;
  }
}

}  // namespace
}  // namespace presum::cli
