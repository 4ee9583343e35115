// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "runlog/run_testing.h"
#include "runlog/sqlite.h"

namespace presum::runlog {
namespace {

// ---- findings

void expect_equal(const Finding& got, const Finding& want) {
  EXPECT_EQ(got.model.model_index, want.model.model_index);
  EXPECT_EQ(got.model.dp_group, want.model.dp_group);
  EXPECT_EQ(got.check, want.check);
  EXPECT_EQ(got.also, want.also);
  EXPECT_EQ(got.severity, want.severity);
  EXPECT_EQ(got.ranks, want.ranks);
  EXPECT_EQ(got.hosts, want.hosts);
  EXPECT_EQ(got.first_step, want.first_step);
  EXPECT_EQ(got.last_step, want.last_step);
  EXPECT_EQ(got.confidence, want.confidence);
  EXPECT_EQ(got.title, want.title);
  EXPECT_EQ(got.equal_until, want.equal_until);
  EXPECT_EQ(got.certain_step, want.certain_step);
  EXPECT_EQ(got.evidence, want.evidence);
  EXPECT_EQ(got.suspects, want.suspects);
  EXPECT_EQ(got.remedy, want.remedy);
  EXPECT_EQ(got.resembles, want.resembles);
}

TEST(Findings, EveryFieldSurvivesAndSoDoEmptyOnes) {
  const TempFolder folder;
  Finding bare;
  bare.model.model_index = 2;
  bare.model.dp_group = 3;
  make_judged_run(folder / "run", {bare, full_finding()});
  const Findings got = findings_in(folder / "run");
  ASSERT_EQ(got.size(), 2U);
  EXPECT_EQ(got[0].model.segment, 1U) << "that of the writer";
  expect_equal(got[0], full_finding());
  expect_equal(got[1], bare);
}

TEST(Findings, HostileTextSurvives) {
  const TempFolder folder;
  const std::string hostile("'); DROP TABLE finding; --\0\x1B[31m\n\t\"\\ \xF0\x9F\x98\x80 {}]",
                            44);
  Finding f = full_finding();
  f.title = f.remedy = f.resembles = f.check = f.suspects = hostile;
  f.hosts = f.also = {hostile, ""};
  f.evidence = {{hostile, {1}, hostile}, {"", {}, ""}};
  make_judged_run(folder / "run", {f, full_finding()});
  const Findings got = findings_in(folder / "run");
  ASSERT_EQ(got.size(), 2U);
  expect_equal(got[0], f);
}

TEST(Findings, TextThatIsNotUtf8IsMended) {
  const TempFolder folder;
  Finding f = full_finding();
  f.hosts = {"node\xFF"};
  f.evidence = {{"a-check", {}, "a\xFE"}};
  make_judged_run(folder / "run", {f});
  const Findings got = findings_in(folder / "run");
  ASSERT_EQ(got.size(), 1U);
  EXPECT_EQ(got[0].hosts, std::vector<std::string>{"node\xEF\xBF\xBD"});
  ASSERT_EQ(got[0].evidence.size(), 1U);
  EXPECT_EQ(got[0].evidence[0].sentence, "a\xEF\xBF\xBD");
}

TEST(Findings, ComeWorstFirstThenByStep) {
  const TempFolder folder;
  Findings all(4, full_finding());
  all[0].severity = Severity::kInfo;
  all[1].first_step = 9;
  all[2].first_step = 5;
  all[3].severity = Severity::kWarning;
  make_judged_run(folder / "run", all);
  const Findings got = findings_in(folder / "run");
  ASSERT_EQ(got.size(), 4U);
  expect_equal(got[0], all[2]);
  expect_equal(got[1], all[1]);
  expect_equal(got[2], all[3]);
  expect_equal(got[3], all[0]);
  auto db = database(folder / "run");
  auto row = db.prepare("SELECT severity, check_id, ranks, first_step FROM findings");
  ASSERT_TRUE(row) << row.error().message;
  for (const char* severity : {"critical", "critical", "warning", "info"}) {
    ASSERT_TRUE(*row->next());
    EXPECT_EQ(row->text(0), severity);
    EXPECT_EQ(row->text(2), "[0,7,4294967295]");
  }
}

TEST(Findings, ReplaceReplacesThoseOfItsModelOnly) {
  const TempFolder folder;
  make_judged_run(folder / "run", {full_finding()});
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock);
  Finding other = full_finding();
  other.model.model_index = other.model.dp_group = 0;
  ASSERT_TRUE(writer.replace({writer.segment(), 0, 0}, Findings{other}, Checks{{.check = "a"}}));
  const Checks three = {{.check = "a"}, {.check = "b"}, {.check = "c"}};
  ASSERT_TRUE(writer.replace({writer.segment(), 2, 3}, Findings(3, full_finding()), three));
  Finding last = full_finding();
  last.title = "Only this one is left";
  ASSERT_TRUE(writer.replace({writer.segment(), 2, 3}, Findings{last}, Checks{{.check = "a"}}));
  ASSERT_TRUE(writer.close());
  const Findings got = findings_in(folder / "run");
  ASSERT_EQ(got.size(), 3U) << "of the segment before, of the other model, and the last one";
  EXPECT_EQ(got[0].model.segment, 1U);
  EXPECT_EQ(got[1].model.segment, 2U);
  EXPECT_EQ(got[1].model.model_index, 0U);
  EXPECT_EQ(got[2].title, last.title);
  EXPECT_EQ(RunLog::open(folder / "run")->checks()->size(), 2U);
  FakeClock again;
  Writer empty = open_writer(folder / "run", again);
  ASSERT_TRUE(empty.replace({empty.segment(), 2, 3}, {}, {}));
  ASSERT_TRUE(empty.close());
  EXPECT_EQ(findings_in(folder / "run").size(), 3U);
}

// Contents that someone else wrote into the file must not crash the reader.
TEST(Findings, FromAFileThatSomeoneChangedNeverCrash) {
  const TempFolder folder;
  make_judged_run(folder / "run", {full_finding()}, {{.check = "a"}});
  const std::string open(100'000, '[');
  const std::string deep = open + std::string(100'000, ']');
  for (const std::string& value :
       {std::string("x"), std::string("{"), std::string("null"), std::string("7"), open, deep,
        "{\"a\":" + deep + ",\"b\":1}", std::string("[1,\"a\",null,{\"b\":[1]},-1,1e999]"),
        std::string("{\"a\":[1,2],\"b\":true}"), std::string("{\"a\":99999999999999999999}"),
        std::string("\xFF"), std::string()}) {
    auto db = database(folder / "run", Database::Mode::kWrite);
    auto update = db.prepare(
        "UPDATE finding SET also = ?1, ranks = ?1, hosts = ?1, evidence = ?1, severity = ?1, "
        "first_step = ?1, confidence = ?1");
    ASSERT_TRUE(update->with(value).run());
    ASSERT_TRUE(db.execute("UPDATE check_state SET state = -5"));
    EXPECT_EQ(findings_in(folder / "run").size(), 1U);
    const auto checks = RunLog::open(folder / "run")->checks();
    ASSERT_TRUE(checks);
    EXPECT_LE(checks->at(0).record.state, CheckRecord::State::kNotPossible);
  }
}

TEST(Findings, WhatIsNotARankOrATextIsLeftOut) {
  const TempFolder folder;
  make_judged_run(folder / "run", {full_finding()});
  ASSERT_TRUE(database(folder / "run", Database::Mode::kWrite)
                  .execute("UPDATE finding SET ranks='[3,\"a\",-1,null,4]', hosts='[1,\"b\"]', "
                           "evidence='[7,{\"ranks\":[1,-2],\"values\":[3]},{\"check\":4}]'"));
  const Finding got = findings_in(folder / "run").at(0);
  EXPECT_EQ(got.ranks, (std::vector<std::uint32_t>{3, 4}));
  EXPECT_EQ(got.hosts, std::vector<std::string>{"b"});
  ASSERT_EQ(got.evidence.size(), 2U);
  EXPECT_EQ(got.evidence[0], (Finding::Evidence{"", {1}, "", "{}"}));
  EXPECT_EQ(got.evidence[1], Finding::Evidence{});
}

TEST(Checks, SurviveInTheirOrder) {
  const TempFolder folder;
  const Checks want = {{"zero-gradient", CheckRecord::State::kFound, ""},
                       {"duplicate-data", CheckRecord::State::kPassed, "512 samples"},
                       {"epoch-not-set", CheckRecord::State::kNotTriggered, "no second epoch"},
                       {"shared-rng", CheckRecord::State::kNotPossible, "it's off"}};
  make_judged_run(folder / "run", {}, want);
  const auto log = RunLog::open(folder / "run");
  const auto got = *log->checks();
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].model, (ModelKey{1, 2, 3}));
    EXPECT_EQ(got[i].record.check, want[i].check);
    EXPECT_EQ(got[i].record.state, want[i].state);
    EXPECT_EQ(got[i].record.reason, want[i].reason);
  }
}

}  // namespace
}  // namespace presum::runlog
