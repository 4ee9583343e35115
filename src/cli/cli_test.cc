// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "checks/engine/diagnoser.h"
#include "cli/testing.h"
#include "presum/version.h"

namespace presum::cli {
namespace {

TEST(Cli, ExplainsEveryCheck) {
  const CommandResult all = run({"explain"});
  EXPECT_EQ(all.code, 0);
  for (const checks::Check check : checks::catalog()) {
    EXPECT_NE(all.out.find(std::string(check->id)), std::string::npos);
    const CommandResult one = run({"explain", std::string(check->id)});
    EXPECT_EQ(one.code, 0);
    for (const char* part : {"looks at", "matters", "not seen", "in code"}) {
      EXPECT_NE(one.out.find(part), std::string::npos) << check->id;
    }
  }
  expect_refusal({"explain", "frobnicate"}, "no check frobnicate");
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
  expect_refusal({"finding", "run"}, "unknown verb: finding (findings?) (see presum --help)");
  expect_refusal({"diagnose", "summary"}, "unknown verb: diagnose (see presum --help)");
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

TEST(Cli, NamesOfRunsCannotSteerTheTerminal) {
  const TempFolder folder;
  const auto name = (folder / "run\x1b[31m").string();
  make_run(name, steps_of(3, 1));
  for (const auto& args :
       std::vector<std::vector<std::string>>{{"summary", name}, {"compare", name, name}}) {
    const CommandResult ran = run(args);
    EXPECT_EQ(ran.code, 0);
    EXPECT_EQ(ran.out.find('\x1b'), std::string::npos);
    EXPECT_NE(ran.out.find("run?[31m"), std::string::npos) << ran.out;
  }
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
  std::fill(bytes.begin() + 4096, bytes.end(), '\x5a');  // all pages except the first
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

}  // namespace
}  // namespace presum::cli
