// SPDX-License-Identifier: Apache-2.0
#include "cli/cli.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "presum/audit.h"
#include "presum/version.h"
#include "runlog/testing.h"
#include "runlog/writer.h"

namespace presum::cli {
namespace {

using presum::testing::FakeClock;
using presum::testing::read_file;
using presum::testing::TempFolder;
using presum::testing::write_file;
using Path = std::filesystem::path;

struct CommandResult {
  int code;
  std::string out;
  std::string err;
};

CommandResult run(const std::vector<std::string>& args) {
  std::ostringstream out;
  std::ostringstream err;
  const int code = main(args, out, err);
  return {code, out.str(), err.str()};
}

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

std::vector<std::string> words(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> out;
  for (std::string word; in >> word;) out.push_back(word);
  return out;
}

std::vector<std::string> keys(const nlohmann::ordered_json& object) {
  std::vector<std::string> out;
  for (const auto& [key, value] : object.items()) out.push_back(key);
  return out;
}

StepRecord step_of(std::uint64_t step, double loss) {
  StepRecord r;
  r.model.segment = 1;
  r.step = step;
  r.workers_expected = 2;
  r.loss_mean = loss;
  r.loss_std = 0.25;
  r.loss_range = 0.5;
  r.grad_norm_std = 3;
  r.grad_norm_cv = 0.125;
  r.cosine_mean = 0.0625;
  r.effective_workers = 1.75;
  r.noise_scale = static_cast<double>(step);
  r.distinct_gradients = 2;
  for (std::uint32_t i = 0; i < 2; ++i) {
    WorkerRecord w;
    w.rank = 4 + i;
    w.replica = i;
    w.loss = loss;
    w.grad_norm = 1;
    w.fingerprint = i + 1;
    r.workers.push_back(w);
  }
  return r;
}

std::vector<StepRecord> steps_of(std::uint64_t count, double loss) {
  std::vector<StepRecord> out;
  for (std::uint64_t s = 0; s < count; ++s) out.push_back(step_of(s, loss));
  return out;
}

const std::vector<CheckRecord> kCheckRecords = {
    {"nonfinite-gradient", CheckRecord::State::kPassed, "every gradient was finite"},
    {"missing-worker", CheckRecord::State::kPassed, ""},
    {"epoch-not-set", CheckRecord::State::kNotTriggered, "no epoch has ended"},
    {"sampler-mismatch", CheckRecord::State::kNotPossible, "no sampler was found"},
    {"overlapping-data", CheckRecord::State::kNotPossible, "no sampler was found."}};

// What a run holds beside its steps.
struct RunExtras {
  std::string note;
  std::vector<Finding> findings;
  std::vector<CheckRecord> checks = kCheckRecords;
  std::optional<int> preflight = {};
};

Finding finding(const std::string& check, Severity severity) {
  Finding f;
  f.check = check;
  f.severity = severity;
  f.ranks = {4};
  f.first_step = f.last_step = 1;
  f.confidence = 0.5;
  f.title = "Title of " + check;
  return f;
}

void make_run(const Path& folder, const std::vector<StepRecord>& records,
              const RunExtras& extras = {}) {
  FakeClock clock;
  auto writer = runlog::Writer::open(folder, clock.function(), runlog::Journal::kWal);
  ASSERT_TRUE(writer) << writer.error().message;
  for (const StepRecord& r : records) ASSERT_TRUE(writer->add(r));
  ASSERT_TRUE(writer->replace({writer->segment(), 0, 0}, extras.findings, extras.checks));
  if (!extras.note.empty()) {
    packet::Note message;
    message.header.segment = 1;
    message.header.identity.rank = 5;
    message.text = extras.note;
    ASSERT_TRUE(writer->add(message));
  }
  if (extras.preflight) {
    ASSERT_TRUE(writer->preflight(*extras.preflight));
  }
  ASSERT_TRUE(writer->close());
}

void expect_refusal(const std::vector<std::string>& args, const std::string& says) {
  const CommandResult ran = run(args);
  EXPECT_EQ(ran.code, 2);
  EXPECT_EQ(ran.out, "");
  EXPECT_EQ(lines(ran.err).size(), 1U) << ran.err;
  EXPECT_EQ(ran.err.find("presum"), 0U) << ran.err;
  EXPECT_NE(ran.err.find(says), std::string::npos) << ran.err;
  const bool clean = std::none_of(ran.err.begin(), ran.err.end() - 1,
                                  [](unsigned char c) { return c < 0x20 || c == 0x7F; });
  EXPECT_TRUE(clean) << ran.err;
}

// ---- the program

TEST(Cli, HelpNamesTheVerbsAndExitsWith0) {
  for (const char* flag : {"--help", "-h"}) {
    const CommandResult ran = run({flag});
    EXPECT_EQ(ran.code, 0);
    EXPECT_EQ(ran.err, "");
    for (const char* verb : {"summary", "findings", "check", "compare", "s1", "RUN", "--version"}) {
      EXPECT_NE(ran.out.find(verb), std::string::npos) << verb;
    }
  }
}

TEST(Cli, EveryVerbHasHelpWithAnExample) {
  for (const char* verb : {"summary", "findings", "check", "compare"}) {
    const CommandResult ran = run({verb, "--help"});
    EXPECT_EQ(ran.code, 0) << verb;
    EXPECT_EQ(ran.err, "");
    EXPECT_NE(ran.out.find(std::string("Example: presum ") + verb), std::string::npos) << ran.out;
  }
}

TEST(Cli, VersionIsTheLibrarys) {
  const CommandResult ran = run({"--version"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.out, std::string("presum ") + version() + "\n");
}

TEST(Cli, BadUseIsOneLineAndExitCode2) {
  expect_refusal({}, "subcommand");
  expect_refusal({"frobnicate"}, "frobnicate");
  expect_refusal({"--frobnicate"}, "frobnicate");
  expect_refusal({"summary"}, "RUN");
  expect_refusal({"check"}, "RUN");
  expect_refusal({"check", "a", "--fail-on", "never"}, "fail-on");
  expect_refusal({"compare", "a"}, "RUN_B");
  expect_refusal({"compare", "a", "b", "--format", "csv"}, "csv");
  expect_refusal({"findings"}, "RUN");
  expect_refusal({"findings", "a", "b"}, "b");
  expect_refusal({"findings", "a", "--format", "xml"}, "xml");
  expect_refusal({"findings", "a", "--segment", "-1"}, "segment");
  expect_refusal({"summary", "--frobnicate", "a"}, "frobnicate");
}

TEST(Cli, BadUseCannotSteerTheTerminal) {
  expect_refusal({"ver\x1b[31mb\nsecond line"}, "ver?[31mb?second");
  expect_refusal({"check", "/absent/\x1b[31m\n"}, "?[31m?");
  expect_refusal({"summary", "/absent/\x1b[31m\n"}, "?[31m?");
}

TEST(Cli, UnreadableRunsAreOneLineAndExitCode2) {
  const TempFolder folder;
  std::filesystem::create_directories(folder / "empty");
  write_file(folder / "notes.txt", std::string(9000, 'x'));
  make_run(folder / "cut", steps_of(200, 1));
  const std::string whole = read_file(folder / "cut/presum.db");
  write_file(folder / "cut/presum.db", whole.substr(0, whole.size() / 2));
  make_run(folder / "good", steps_of(2, 1));
  for (const char* verb : {"summary", "check", "findings"}) {
    expect_refusal({verb, (folder / "absent").string()}, "no such run");
    expect_refusal({verb, (folder / "empty").string()}, "it holds no presum.db");
    expect_refusal({verb, (folder / "notes.txt").string()}, "not a presum run log");
    expect_refusal({verb, (folder / "cut").string()}, "cut");
  }
}

TEST(Cli, ADamagedRunIsNamedWithWhatToDoByEveryVerb) {
  const TempFolder folder;
  make_run(folder / "good", steps_of(200, 1));
  make_run(folder / "bad", steps_of(200, 1));
  const auto bad = (folder / "bad").string();
  std::string bytes = read_file(folder / "bad/presum.db");
  std::fill(bytes.begin() + 4096, bytes.end(), '\x5a');  // all pages but the first
  write_file(folder / "bad/presum.db", bytes);
  const auto page = (folder / "page.html").string();
  const std::vector<std::vector<std::string>> verbs = {
      {"summary", bad},
      {"check", bad},
      {"findings", bad},
      {"export", bad},
      {"report", bad, "-o", page},
      {"compare", (folder / "good").string(), bad}};
  for (const auto& verb : verbs) {
    expect_refusal(verb, "bad/presum.db is damaged: copy it again from where it was written");
  }
}

TEST(Cli, BadUsePointsToTheHelpOfItsVerb) {
  EXPECT_EQ(run({"compare", "a"}).err, "presum: RUN_B is required (see presum compare --help)\n");
  EXPECT_NE(run({"nonsense"}).err.find("(see presum --help)"), std::string::npos);
}

TEST(Cli, OneUnreadableRunDoesNotHideTheOthers) {
  const TempFolder folder;
  make_run(folder / "good", steps_of(2, 1));
  const CommandResult ran =
      run({"summary", (folder / "absent").string(), (folder / "good").string()});
  EXPECT_EQ(ran.code, 2);
  EXPECT_NE(ran.err.find("absent"), std::string::npos);
  EXPECT_NE(ran.out.find("good"), std::string::npos);
}

// ---- summary

TEST(Summary, HasOneLinePerRun) {
  const TempFolder folder;
  make_run(folder / "first", steps_of(3, 2));
  make_run(folder / "second", steps_of(30, 1.5));
  const CommandResult ran =
      run({"summary", (folder / "first").string(), (folder / "second/presum.db").string()});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.err, "");
  const auto rows = lines(ran.out);
  ASSERT_EQ(rows.size(), 3U) << ran.out;
  EXPECT_EQ(words(rows[1]), (std::vector<std::string>{"first", "3", "2", "2", "0.25", "0.5", "3",
                                                      "0.125", "0.0625", "1.75", "2"}));
  EXPECT_EQ(words(rows[2])[0], "second");
  EXPECT_EQ(words(rows[2])[1], "30");
  EXPECT_EQ(words(rows[2])[10], "29") << "the noise scale at the end";
}

TEST(Summary, LossIsTheMeanOfTheLast20Steps) {
  const TempFolder folder;
  auto steps = steps_of(30, 100);
  for (std::size_t s = 10; s < 30; ++s) steps[s].loss_mean = s % 2 == 0 ? 1 : 2;
  make_run(folder / "run", steps);
  EXPECT_EQ(words(lines(run({"summary", (folder / "run").string()}).out).at(1))[3], "1.5");
}

TEST(Summary, ShowsDashesForWhatIsUnknownAndForARunWithoutSteps) {
  const TempFolder folder;
  auto steps = steps_of(2, 1);
  for (StepRecord& s : steps) s.cosine_mean = kNaN;
  make_run(folder / "one", steps);
  make_run(folder / "none", {});
  const CommandResult ran = run({"summary", (folder / "one").string(), (folder / "none").string()});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(words(lines(ran.out).at(1))[8], "-");
  EXPECT_EQ(words(lines(ran.out).at(2)),
            (std::vector<std::string>{"none", "0", "-", "-", "-", "-", "-", "-", "-", "-", "-"}));
}

TEST(Summary, KeepsModelsApart) {
  const TempFolder folder;
  auto steps = steps_of(4, 1);
  steps[2].model.module = 1;
  steps[3].model.shard = 1;
  make_run(folder / "run", steps);
  const auto rows = lines(run({"summary", (folder / "run").string()}).out);
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[1].find("run module 0 shard 0"), 0U);
  EXPECT_EQ(rows[2].find("run module 0 shard 1"), 0U);
  EXPECT_EQ(rows[3].find("run module 1 shard 0"), 0U);
  steps.pop_back();
  make_run(folder / "unsharded", steps);
  const auto models = lines(run({"summary", (folder / "unsharded").string()}).out);
  EXPECT_EQ(models.at(2).find("unsharded module 1  "), 0U);
}

TEST(Summary, NamesCannotSteerTheTerminal) {
  const TempFolder folder;
  make_run(folder / "run\x1b[31m", steps_of(1, 1));
  const CommandResult ran = run({"summary", (folder / "run\x1b[31m").string()});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.out.find('\x1b'), std::string::npos);
  EXPECT_NE(ran.out.find("run?[31m"), std::string::npos) << ran.out;
}

// ---- findings

// The first finding has everything that text shows; the other nothing that may be left out.
RunExtras two_findings() {
  Finding full = finding("duplicate-data", Severity::kCritical);
  full.also = {"pair-too-similar", "too-consistent"};
  full.ranks = {0, 1, 5};
  full.hosts = {"node08", "node09", "login"};
  full.first_step = 2;
  full.last_step = 8;
  full.confidence = 0.999;
  full.title = "Ranks 0, 1 and 5 read the same samples";
  full.evidence = {{"shared_samples", std::int64_t{9007199254740993}},
                   {"share", 0.123456},
                   {"unknown", kNaN},
                   {"statistic", std::string("loss")},
                   {"groups", std::string("embed, norm")}};
  full.remedy = "Give each rank its own shard.";
  full.resembles = "pytorch/pytorch#31771";
  RunExtras out{.note = "sparse", .findings = {full, finding("loss-event", Severity::kInfo)}};
  out.checks.insert(out.checks.begin(), {"duplicate-data", CheckRecord::State::kFound, ""});
  return out;
}

TEST(Findings, TextSaysEverythingWorstFirst) {
  const TempFolder folder;
  make_run(folder / "run", steps_of(9, 1), two_findings());
  const CommandResult ran = run({"findings", (folder / "run").string()});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.err, "");
  EXPECT_EQ(ran.out,
            "run: inconsistent, 2 findings (1 critical, 1 info)\n"
            "9 steps, 2 of 2 workers\n"
            "\n"
            "critical: Ranks 0, 1 and 5 read the same samples\n"
            "    duplicate-data, ranks 0-1,5 on login, node[08-09], steps 2-8, confidence 99%\n"
            "    evidence   shared_samples 9007199254740993, share 0.1235, unknown -, "
            "statistic loss, groups \"embed, norm\"\n"
            "    do         Give each rank its own shard.\n"
            "    resembles  pytorch/pytorch#31771\n"
            "    also seen  pair-too-similar, too-consistent\n"
            "\n"
            "info: Title of loss-event\n"
            "    loss-event, rank 4, step 1, confidence 50%\n"
            "\n"
            "found: duplicate-data\n"
            "passed: nonfinite-gradient, missing-worker\n"
            "not triggered: epoch-not-set\n"
            "not possible: sampler-mismatch, overlapping-data (no sampler was found)\n"
            "\n"
            "notes of the collection:\n"
            "    rank 5: sparse\n");
}

TEST(Findings, JsonHasTheDocumentedFieldsInTheirOrder) {
  const TempFolder folder;
  make_run(folder / "run", steps_of(9, 1), two_findings());
  const CommandResult ran = run({"findings", (folder / "run").string(), "--format", "json"});
  EXPECT_EQ(ran.code, 0);
  const auto json = nlohmann::ordered_json::parse(ran.out);
  EXPECT_EQ(keys(json), words("schema_version verdict coverage segments findings checks audits"));
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
  EXPECT_EQ(keys(first), words("check also severity ranks hosts first_step last_step confidence "
                               "title evidence remedy resembles segment module shard"));
  EXPECT_EQ(first["severity"], "critical");
  EXPECT_EQ(first["ranks"].dump(), "[0,1,5]");
  EXPECT_EQ(first["evidence"].dump(),
            R"({"shared_samples":9007199254740993,"share":0.123456,"unknown":null,)"
            R"("statistic":"loss","groups":"embed, norm"})");
  ASSERT_EQ(json["checks"].size(), 6U);
  EXPECT_EQ(json["checks"][5].dump(),
            R"({"check":"overlapping-data","state":"not-possible",)"
            R"("reason":"no sampler was found.","segment":1,"module":0,"shard":0})");
}

TEST(Findings, ShowWhatAuditsOfTheSumFound) {
  const TempFolder folder;
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
  make_run(folder / "run", steps);
  const CommandResult ran = run({"findings", (folder / "run").string()});
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
  const TempFolder folder;
  make_run(folder / "run", {}, {.checks = {}});
  const CommandResult text = run({"findings", (folder / "run").string()});
  EXPECT_EQ(text.code, 0);
  EXPECT_EQ(text.out,
            "run: insufficient evidence: no step was recorded (was a backward pass run after "
            "attach?), no finding\n0 steps, 0 of 0 workers\n");
  const CommandResult json = run({"findings", (folder / "run").string(), "--format", "json"});
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
  EXPECT_NE(all.out.find("43 steps, 2 of 2 workers, 2 segments\n"), std::string::npos) << all.out;
  EXPECT_NE(all.out.find("found: duplicate-data (1 of 2)\n"), std::string::npos) << all.out;
  const CommandResult second = run({"findings", file, "--segment", "2"});
  EXPECT_EQ(second.out.find("run: consistent, no finding\n40 steps, 2 of 2 workers\n"), 0U)
      << second.out;
  EXPECT_EQ(second.out.find("note"), std::string::npos) << "the note is of segment 1";
  expect_refusal({"findings", file, "--segment", "3"}, "no segment 3");
}

TEST(Findings, SayWhatAPreflightEndedWith) {
  const TempFolder folder;
  make_run(folder / "run", steps_of(9, 1), {.preflight = 0});
  const auto file = (folder / "run").string();
  EXPECT_EQ(run({"findings", file})
                .out.find("run: consistent, no finding\n9 steps, 2 of 2 workers\n"
                          "preflight: ended with exit code 0 (nothing at or above warning)\n\n"),
            0U);
  make_run(folder / "run", {}, {.preflight = 2});
  const CommandResult ran = run({"findings", file});
  EXPECT_NE(ran.out.find("preflight of segment 1: ended with exit code 0 ("), std::string::npos);
  EXPECT_NE(ran.out.find("preflight of segment 2: ended with exit code 2 (could not judge)\n"),
            std::string::npos)
      << ran.out;
  const auto json = nlohmann::json::parse(run({"findings", file, "--format", "json"}).out);
  EXPECT_EQ(json["segments"][1]["preflight_exit_code"], 2);
}

TEST(Findings, SayWhichModelAndSegment) {
  const TempFolder folder;
  make_run(folder / "run", steps_of(3, 1), two_findings());
  make_run(folder / "run", {}, {.findings = {finding("worker-outlier", Severity::kWarning)}});
  const CommandResult ran = run({"findings", (folder / "run").string()});
  EXPECT_NE(ran.out.find("rank 4, step 1, segment 2, confidence"), std::string::npos) << ran.out;
}

TEST(Findings, NothingOfARunCanSteerTheTerminal) {
  const TempFolder folder;
  const std::string evil = "\x1b[2J\nforged";
  Finding f = finding(evil, Severity::kWarning);
  f.title = f.remedy = f.resembles = evil;
  f.also = f.hosts = {evil};
  f.evidence = {{evil, evil}};
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

// ---- check

TEST(Check, AConsistentRunExitsWith0) {
  const TempFolder folder;
  make_run(folder / "run", steps_of(30, 1));
  const CommandResult ran = run({"check", (folder / "run").string()});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.err, "");
  EXPECT_EQ(ran.out,
            "run: consistent; 30 steps, 2 of 2 workers; 0 findings, 0 at or above critical\n");
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
  EXPECT_EQ(run({"check", (folder / "warning").string()}).code, 0) << "critical by default";
}

TEST(Check, OneLineAFindingAndOneLineARun) {
  const TempFolder folder;
  make_run(folder / "good", steps_of(30, 1));
  make_run(folder / "bad", steps_of(30, 1), two_findings());
  const CommandResult ran = run({"check", (folder / "bad").string(), (folder / "good").string()});
  EXPECT_EQ(ran.code, 1);
  EXPECT_EQ(ran.out,
            "bad: critical: duplicate-data: Ranks 0, 1 and 5 read the same samples (ranks 0-1,5 "
            "on login, node[08-09], steps 2-8)\n"
            "bad: info: loss-event: Title of loss-event (rank 4, step 1)\n"
            "bad: inconsistent; 30 steps, 2 of 2 workers; 2 findings, 1 at or above critical\n"
            "good: consistent; 30 steps, 2 of 2 workers; 0 findings, 0 at or above critical\n");
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

TEST(Check, OneWorkerIsTooLittleEvidence) {
  const TempFolder folder;
  auto steps = steps_of(40, 1);
  for (StepRecord& s : steps) {
    s.workers_expected = 1;
    s.workers.resize(1);
  }
  make_run(folder / "run", steps);
  const CommandResult ran = run({"check", (folder / "run").string()});
  EXPECT_EQ(ran.code, 2);
  EXPECT_EQ(ran.out,
            "run: insufficient evidence: one worker: there is nothing to compare; 40 steps, 1 of 1 "
            "worker; 0 findings, 0 at or above critical\n");
}

TEST(Check, ARunWithoutChecksIsNotConsistent) {
  const TempFolder folder;
  make_run(folder / "run", steps_of(40, 1), {.checks = {}});
  const CommandResult ran = run({"check", (folder / "run").string()});
  EXPECT_EQ(ran.code, 2);
  EXPECT_NE(ran.out.find("no check was made"), std::string::npos) << ran.out;
}

// A run that is still written, or whose writer was killed.
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
            "run: consistent; 30 steps, 2 of 2 workers; 0 findings, 0 at or above critical; "
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
            "is full; 30 steps, 2 of 2 workers; 0 findings, 0 at or above critical\n");
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

// ---- export

TEST(Export, WritesFindingsAsCsvWithTheirListsAsJson) {
  const TempFolder folder;
  make_run(folder / "run", steps_of(9, 1), two_findings());
  const CommandResult ran = run({"export", (folder / "run").string(), "--table", "findings"});
  EXPECT_EQ(ran.code, 0);
  const auto rows = lines(ran.out);
  ASSERT_EQ(rows.size(), 3U) << ran.out;
  EXPECT_EQ(rows[0],
            "segment,module,shard,check_id,also,severity,ranks,hosts,first_step,last_step,"
            "confidence,title,evidence,remedy,resembles");
  EXPECT_EQ(rows[1].find(R"(1,0,0,duplicate-data,"[""pair-too-similar"",""too-consistent""]",)"
                         R"(critical,"[0,1,5]",)"),
            0U)
      << rows[1];
  EXPECT_EQ(rows[2], "1,0,0,loss-event,[],info,[4],[],1,1,0.5,Title of loss-event,{},,");
}

TEST(Export, WritesChecksAsJsonLines) {
  const TempFolder folder;
  make_run(folder / "run", steps_of(9, 1));
  const CommandResult ran =
      run({"export", (folder / "run").string(), "--table", "checks", "--format", "jsonl"});
  EXPECT_EQ(ran.code, 0);
  const auto rows = lines(ran.out);
  ASSERT_EQ(rows.size(), 5U) << ran.out;
  EXPECT_EQ(rows[0], R"({"segment":1,"module":0,"shard":0,"check_id":"nonfinite-gradient",)"
                     R"("state":"passed","reason":"every gradient was finite"})");
}

TEST(Export, AnEmptyTableHasItsHead) {
  const TempFolder folder;
  make_run(folder / "run", {});
  const auto file = (folder / "run").string();
  EXPECT_EQ(lines(run({"export", file, "--table", "findings"}).out).size(), 1U);
  EXPECT_EQ(run({"export", file, "--table", "findings", "--format", "jsonl"}).out, "");
  expect_refusal({"export", file, "--table", "segment"}, "segment");
}

// ---- compare

CommandResult compare_runs(const TempFolder& folder, const std::vector<std::string>& more = {}) {
  std::vector<std::string> args = {"compare", (folder / "a").string(), (folder / "b").string()};
  args.insert(args.end(), more.begin(), more.end());
  return run(args);
}

TEST(Compare, IdenticalRunsExitWith0) {
  const TempFolder folder;
  make_run(folder / "a", steps_of(3, 1));
  make_run(folder / "b", steps_of(3, 1));
  const CommandResult ran = compare_runs(folder);
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(lines(ran.out).at(0),
            "identical in all that was compared, at 3 common steps; not compared: data, random "
            "generators, parameters, reduction, final parameters");
}

TEST(Compare, DifferentRunsExitWith1AndNameTheFirstDifference) {
  const TempFolder folder;
  auto steps = steps_of(3, 1);
  make_run(folder / "a", steps);
  steps[1].workers[1].fingerprint = 77;
  make_run(folder / "b", steps);
  const CommandResult ran = compare_runs(folder);
  EXPECT_EQ(ran.code, 1);
  EXPECT_EQ(lines(ran.out).at(0),
            "different: identical up to step 0; first difference at step 1, local gradient, rank "
            "5: gradient");
  const auto json = nlohmann::json::parse(compare_runs(folder, {"--format", "json"}).out);
  EXPECT_EQ(json["models"][0]["first_stage"], "local-gradient");
}

TEST(Compare, RunsWithNothingInCommonExitWith2) {
  const TempFolder folder;
  make_run(folder / "a", steps_of(3, 1));
  make_run(folder / "b", {});
  const CommandResult ran = compare_runs(folder);
  EXPECT_EQ(ran.code, 2);
  EXPECT_EQ(lines(ran.out).at(0), "not comparable: B holds no step");
}

TEST(Compare, WritesAPageWithBothRunsAndTheComparison) {
  const TempFolder folder;
  make_run(folder / "a", steps_of(3, 1));
  make_run(folder / "b", steps_of(3, 2));
  const auto page = folder / "page.html";
  EXPECT_EQ(compare_runs(folder, {"-o", page.string()}).code, 1);
  EXPECT_NE(read_file(page).find(R"("comparison":{"outcome":"different")"), std::string::npos);
  const CommandResult refused = compare_runs(folder, {"-o", folder.path().string()});
  EXPECT_EQ(refused.code, 2);
  EXPECT_EQ(refused.out, "");
}

TEST(Compare, NamesCannotSteerTheTerminal) {
  const TempFolder folder;
  make_run(folder / "a", steps_of(3, 1));
  make_run(folder / "b\x1b[31m", steps_of(3, 1));
  const CommandResult ran =
      run({"compare", (folder / "a").string(), (folder / "b\x1b[31m").string()});
  EXPECT_EQ(ran.out.find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace presum::cli
