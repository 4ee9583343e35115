// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "cli/testing.h"
#include "runlog/writer.h"

namespace presum::cli {
namespace {

TEST(Check, AConsistentRunExitsWith0) {
  const CommandResult ran = run_on("check", steps_of(30, 1));
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.err, "");
  EXPECT_EQ(ran.out,
            "run: consistent; 30 steps, 2 of 2 ranks; 0 findings, 0 at or above warning\n");
}

TEST(Check, FailsFromTheAskedLevelOn) {
  const TempFolder folder;
  for (const auto& [name, severity] :
       {std::pair{"info", Severity::kInfo}, std::pair{"warning", Severity::kWarning},
        std::pair{"critical", Severity::kCritical}}) {
    make_run(folder / name, steps_of(30, 1), {.findings = {finding("zero-gradient", severity)}});
  }
  const auto code = [&](const char* name, const char* level) {
    return run({"check", (folder / name).string(), "--fail-on", level}).code;
  };
  EXPECT_EQ(code("info", "info"), 1);
  EXPECT_EQ(code("info", "warning"), 0);
  EXPECT_EQ(code("warning", "info"), 1);
  EXPECT_EQ(code("warning", "warning"), 1);
  EXPECT_EQ(code("warning", "critical"), 0);
  EXPECT_EQ(code("critical", "critical"), 1);
  EXPECT_EQ(run({"check", (folder / "warning").string()}).code, 1) << "warning by default";
}

TEST(Check, WhereStatisticsAreRequiredARunThatIsTooShortForThemIsNotJudged) {
  const TempFolder folder;
  make_run(folder / "short", steps_of(20, 1));
  make_run(folder / "long", steps_of(30, 1));
  const auto checked = [&](const char* name) {
    return run({"check", (folder / name).string(), "--require", "statistics"});
  };
  EXPECT_EQ(checked("long").code, 0);
  EXPECT_EQ(checked("short").code, 2);
  EXPECT_EQ(checked("short").out,
            "short: consistent; 20 steps, 2 of 2 ranks; 0 findings, 0 at or above warning; "
            "statistics need 26 steps with 2 ranks, and saw 20\n");
  EXPECT_EQ(run({"check", (folder / "short").string()}).code, 0);
}

TEST(Check, OneLineAFindingAndOneLineARun) {
  const TempFolder folder;
  make_run(folder / "good", steps_of(30, 1));
  make_run(folder / "bad", steps_of(30, 1), two_findings());
  const CommandResult ran = run({"check", (folder / "bad").string(), (folder / "good").string()});
  EXPECT_EQ(ran.code, 1);
  EXPECT_EQ(ran.out,
            "bad: critical: duplicate-data: Ranks 0, 1 and 5 read the same samples, since step 2, "
            "last seen at 8 (ranks 0-1,5 "
            "on login, node[08-09])\n"
            "bad: info: loss-event: Title of loss-event, at step 1 (rank 4)\n"
            "bad: inconsistent; 30 steps, 2 of 2 ranks; 2 findings, 1 at or above warning\n"
            "good: consistent; 30 steps, 2 of 2 ranks; 0 findings, 0 at or above warning\n");
}

TEST(Check, FindingsOutweighARunThatCouldNotBeJudged) {
  const TempFolder folder;
  make_run(folder / "empty", {});
  make_run(folder / "good", steps_of(30, 1));
  make_run(folder / "bad", steps_of(30, 1), two_findings());
  const auto empty = (folder / "empty").string();
  const auto absent = (folder / "absent").string();
  const auto good = (folder / "good").string();
  EXPECT_EQ(run({"check", empty}).code, 2);
  EXPECT_EQ(run({"check", good, empty}).code, 2);
  EXPECT_EQ(run({"check", absent, good}).code, 2);
  EXPECT_EQ(run({"check", absent, empty, (folder / "bad").string()}).code, 1);
}

// A run that is still being written, or whose writer was killed.
void leave_open(const Path& folder, const std::vector<StepRecord>& records) {
  FakeClock clock;
  auto writer = runlog::Writer::open(folder, clock.function(), runlog::Journal::kWal);
  ASSERT_TRUE(writer) << writer.error().message;
  for (const StepRecord& r : records) ASSERT_TRUE(writer->add(r));
  ASSERT_TRUE(writer->replace({writer->segment(), 0, 0}, {}, kCheckRecords));
  clock.advance(2);
  ASSERT_TRUE(writer->tick());
}

TEST(Check, ARunThatWasNotClosedIsJudgedOnWhatItHoldsAndSaysSo) {
  const TempFolder folder;
  const auto file = (folder / "run").string();
  leave_open(folder / "run", steps_of(30, 1));
  const CommandResult one = run({"check", file});
  EXPECT_EQ(one.code, 0);
  EXPECT_EQ(one.out,
            "run: consistent; 30 steps, 2 of 2 ranks; 0 findings, 0 at or above warning; "
            "not closed (still running, or died): judged on the 30 steps written\n");
  auto restarted = steps_of(1, 1);
  restarted[0].model.segment = 2;
  make_run(folder / "run", restarted);
  EXPECT_NE(run({"check", file})
                .out.find("; segment 1 not closed (still running, or died): judged on the 31 "
                          "steps written\n"),
            std::string::npos);
  const CommandResult closed = run({"findings", file, "--segment", "2"});
  EXPECT_EQ(closed.out.find("not closed"), std::string::npos) << closed.out;
}

TEST(Check, ARunWhoseRecordingFailedIsNotConsistentAndSaysSinceWhen) {
  const TempFolder folder;
  const auto file = (folder / "run").string();
  {
    FakeClock clock;
    auto writer = runlog::Writer::open(folder / "run", clock.function(), runlog::Journal::kWal);
    for (const StepRecord& r : steps_of(30, 1)) ASSERT_TRUE(writer->add(r));
    ASSERT_TRUE(writer->replace({writer->segment(), 0, 0}, {}, kCheckRecords));
    ASSERT_TRUE(writer->count({.damaged = 2, .late = 135}));
    writer->abandon("database or disk is full");
  }
  const CommandResult summary = run({"summary", file});
  EXPECT_EQ(summary.err,
            "presum summary: run is incomplete after step 29: database or disk is full\n");
  const CommandResult checked = run({"check", file});
  EXPECT_EQ(checked.code, 2);
  EXPECT_EQ(checked.out,
            "run: insufficient evidence: the record is incomplete after step 29: database or disk "
            "is full; 30 steps, 2 of 2 ranks; 0 findings, 0 at or above warning\n");
  const CommandResult found = run({"findings", file});
  EXPECT_EQ(found.code, 0);
  EXPECT_NE(found.out.find("\nincomplete after step 29: database or disk is full\n"),
            std::string::npos)
      << found.out;
  EXPECT_NE(found.out.find("\n135 packets arrived late, 2 packets damaged\n"), std::string::npos)
      << found.out;
}

TEST(Check, AnOpenRunWithoutAStepIsNotConsistent) {
  const TempFolder folder;
  leave_open(folder / "run", {});
  const CommandResult ran = run({"check", (folder / "run").string()});
  EXPECT_EQ(ran.code, 2);
  EXPECT_NE(ran.out.find("judged on the 0 steps written\n"), std::string::npos) << ran.out;
}

}  // namespace
}  // namespace presum::cli
