// SPDX-License-Identifier: Apache-2.0
#include "cli/cli.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

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

struct Ran {
  int code;
  std::string out;
  std::string err;
};

Ran run(const std::vector<std::string>& args) {
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

StepRecord step_of(std::uint64_t step, double loss) {
  StepRecord r;
  r.segment = 1;
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

void make_run(const Path& folder, const std::vector<StepRecord>& records,
              const std::string& note = "") {
  FakeClock clock;
  auto writer = runlog::Writer::open(folder, clock.function(), runlog::Journal::kWal);
  ASSERT_TRUE(writer) << writer.error().message;
  for (const StepRecord& r : records) ASSERT_TRUE(writer->add(r));
  if (!note.empty()) {
    packet::Note message;
    message.header.segment = 1;
    message.header.identity.world_rank = 5;
    message.text = note;
    ASSERT_TRUE(writer->add(message));
  }
  ASSERT_TRUE(writer->close());
}

void expect_refusal(const std::vector<std::string>& args, const std::string& says) {
  const Ran ran = run(args);
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
    const Ran ran = run({flag});
    EXPECT_EQ(ran.code, 0);
    EXPECT_EQ(ran.err, "");
    for (const char* verb : {"summary", "check", "s1", "RUN", "--version"}) {
      EXPECT_NE(ran.out.find(verb), std::string::npos) << verb;
    }
  }
}

TEST(Cli, EveryVerbHasHelpWithAnExample) {
  for (const char* verb : {"summary", "check"}) {
    const Ran ran = run({verb, "--help"});
    EXPECT_EQ(ran.code, 0) << verb;
    EXPECT_EQ(ran.err, "");
    EXPECT_NE(ran.out.find(std::string("Example: presum ") + verb), std::string::npos) << ran.out;
  }
}

TEST(Cli, VersionIsTheLibrarys) {
  const Ran ran = run({"--version"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.out, std::string("presum ") + version() + "\n");
}

TEST(Cli, BadUseIsOneLineAndExitCode2) {
  expect_refusal({}, "subcommand");
  expect_refusal({"frobnicate"}, "frobnicate");
  expect_refusal({"--frobnicate"}, "frobnicate");
  expect_refusal({"summary"}, "RUN");
  expect_refusal({"check"}, "RUN");
  expect_refusal({"check", "a", "b"}, "b");
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
  for (const char* verb : {"summary", "check"}) {
    expect_refusal({verb, (folder / "absent").string()}, "no such run");
    expect_refusal({verb, (folder / "empty").string()}, "it holds no presum.db");
    expect_refusal({verb, (folder / "notes.txt").string()}, "not a presum run log");
    expect_refusal({verb, (folder / "cut").string()}, "cut");
  }
}

TEST(Cli, OneUnreadableRunDoesNotHideTheOthers) {
  const TempFolder folder;
  make_run(folder / "good", steps_of(2, 1));
  const Ran ran = run({"summary", (folder / "absent").string(), (folder / "good").string()});
  EXPECT_EQ(ran.code, 2);
  EXPECT_NE(ran.err.find("absent"), std::string::npos);
  EXPECT_NE(ran.out.find("good"), std::string::npos);
}

// ---- summary

TEST(Summary, HasOneLinePerRun) {
  const TempFolder folder;
  make_run(folder / "first", steps_of(3, 2));
  make_run(folder / "second", steps_of(30, 1.5));
  const Ran ran =
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
  const Ran ran = run({"summary", (folder / "one").string(), (folder / "none").string()});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(words(lines(ran.out).at(1))[8], "-");
  EXPECT_EQ(words(lines(ran.out).at(2)),
            (std::vector<std::string>{"none", "0", "-", "-", "-", "-", "-", "-", "-", "-", "-"}));
}

TEST(Summary, KeepsModelsApart) {
  const TempFolder folder;
  auto steps = steps_of(4, 1);
  steps[2].module = 1;
  steps[3].shard = 1;
  make_run(folder / "run", steps);
  const auto rows = lines(run({"summary", (folder / "run").string()}).out);
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[1].find("run module 0.0"), 0U);
  EXPECT_EQ(rows[2].find("run module 0.1"), 0U);
  EXPECT_EQ(rows[3].find("run module 1.0"), 0U);
}

TEST(Summary, NamesCannotSteerTheTerminal) {
  const TempFolder folder;
  make_run(folder / "run\x1b[31m", steps_of(1, 1));
  const Ran ran = run({"summary", (folder / "run\x1b[31m").string()});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.out.find('\x1b'), std::string::npos);
  EXPECT_NE(ran.out.find("run?[31m"), std::string::npos) << ran.out;
}

// ---- check

TEST(Check, AHealthyRunExitsWith0) {
  const TempFolder folder;
  make_run(folder / "run", steps_of(3, 1));
  const Ran ran = run({"check", (folder / "run").string()});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.err, "");
  EXPECT_EQ(ran.out, "run: 3 steps checked, no hard fact against it\n");
}

TEST(Check, FindingsNameRankAndStepsAndExitWith1) {
  const TempFolder folder;
  auto steps = steps_of(9, 1);
  for (const std::size_t s : {2U, 3U, 7U}) steps[s].workers[1].nonfinite = 1;
  steps[5].workers[0].grad_norm = 0;
  make_run(folder / "run", steps);
  const Ran ran = run({"check", (folder / "run").string()});
  EXPECT_EQ(ran.code, 1);
  EXPECT_EQ(ran.err, "");
  EXPECT_NE(ran.out.find("non-finite gradient: rank 5, steps 2-7 (3 of them)"), std::string::npos)
      << ran.out;
  EXPECT_NE(ran.out.find("zero gradient: rank 4, step 5\n"), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("run: 9 steps checked, 2 found"), std::string::npos) << ran.out;
}

TEST(Check, ARunWithoutStepsCannotBeJudged) {
  const TempFolder folder;
  make_run(folder / "run", {});
  expect_refusal({"check", (folder / "run").string()}, "holds no step");
}

TEST(Check, NotesAreShownButCannotSteerTheTerminal) {
  const TempFolder folder;
  make_run(folder / "run", steps_of(1, 1), "sparse\x1b[2J\ngradient");
  const Ran ran = run({"check", (folder / "run").string()});
  EXPECT_EQ(ran.code, 0) << "a note is no finding";
  EXPECT_NE(ran.out.find("note of rank 5: sparse?[2J?gradient\n"), std::string::npos) << ran.out;
}

}  // namespace
}  // namespace presum::cli
