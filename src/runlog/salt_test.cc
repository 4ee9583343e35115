// SPDX-License-Identifier: Apache-2.0
#include "runlog/salt.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <string>
#include <vector>

#include "base/hash.h"
#include "runlog/testing.h"

namespace presum::runlog {
namespace {

// The user has no folder for the salt unless a test provides one.
class ProjectSalt : public ::testing::Test {
 protected:
  ProjectSalt() { setenv("XDG_CONFIG_HOME", "/dev/null", 1); }
  ~ProjectSalt() override { unsetenv("XDG_CONFIG_HOME"); }

  static void give_home(const std::filesystem::path& folder) {
    setenv("XDG_CONFIG_HOME", folder.c_str(), 1);
  }
};

unsigned mode_of(const std::filesystem::path& file) {
  struct stat info {};
  EXPECT_EQ(stat(file.c_str(), &info), 0) << file;
  return info.st_mode & 0777;
}

TEST_F(ProjectSalt, OfAUserIsOneForAllFolders) {
  const testing::TempFolder home;
  const testing::TempFolder a;
  const testing::TempFolder b;
  give_home(home / "config");
  const auto made = project_salt(a / "run");
  ASSERT_TRUE(made);
  EXPECT_EQ(*project_salt(b / "run"), *made);
  EXPECT_EQ(mode_of(home / "config/presum/salt"), 0600U);
  EXPECT_TRUE(std::filesystem::is_empty(b.path()));
}

TEST_F(ProjectSalt, OfAFolderOutlivesAHomeThatDoesNotLast) {
  const testing::TempFolder folder;
  const auto in_container = [&] {
    const testing::TempFolder home;
    give_home(home.path());
    return project_salt(folder / "run").value_or(0);
  };
  const auto first = in_container();
  EXPECT_NE(first, 0U);
  EXPECT_EQ(in_container(), first);
  EXPECT_EQ(mode_of(folder / ".presum-salt"), 0600U);
}

TEST_F(ProjectSalt, OfAFolderComesBeforeTheUsers) {
  const testing::TempFolder home;
  const testing::TempFolder folder;
  give_home(home.path());
  testing::write_file(folder / ".presum-salt", "of-the-project");
  EXPECT_EQ(*project_salt(folder / "run"), name_hash("of-the-project"));
  EXPECT_TRUE(std::filesystem::is_empty(home.path()));
}

constexpr int kProcesses = 8;

// The salts that processes started at the same time use for these runs; each writes one file in
// `told`.
std::set<std::string> salts_of(const std::vector<std::filesystem::path>& runs,
                               const testing::TempFolder& told) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (fork() != 0) continue;
    const auto salt = project_salt(runs[i]);
    testing::write_file(told / std::to_string(i), salt ? std::to_string(*salt) : "none");
    _exit(0);
  }
  while (wait(nullptr) > 0) continue;
  std::set<std::string> out;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    out.insert(testing::read_file(told / std::to_string(i)));
  }
  return out;
}

TEST_F(ProjectSalt, OfAUserIsOneForProcessesThatStartTogether) {
  const testing::TempFolder home;
  const testing::TempFolder folder;
  give_home(home.path());
  std::vector<std::filesystem::path> runs;
  for (int i = 0; i < kProcesses; ++i) {
    runs.push_back(folder / ("in-" + std::to_string(i)) / "run");
    std::filesystem::create_directories(runs.back().parent_path());
  }
  EXPECT_EQ(salts_of(runs, folder),
            std::set<std::string>{std::to_string(*project_salt(folder / "another/run"))});
}

TEST_F(ProjectSalt, IsMadeOncePrivatelyAndKept) {
  const testing::TempFolder folder;
  const auto first = project_salt(folder / "runs/a");
  ASSERT_FALSE(first);  // no folder to store it in
  std::filesystem::create_directories(folder / "runs");
  const auto made = project_salt(folder / "runs/a");
  ASSERT_TRUE(made);
  EXPECT_EQ(*project_salt(folder / "runs/b"), *made);
  EXPECT_EQ(*project_salt(folder / "runs/a/"), *made);
  EXPECT_EQ(mode_of(folder / "runs/.presum-salt"), 0600U);
}

TEST_F(ProjectSalt, OfAnotherProjectDiffers) {
  const testing::TempFolder a;
  const testing::TempFolder b;
  EXPECT_NE(*project_salt(a / "run"), *project_salt(b / "run"));
}

TEST_F(ProjectSalt, TheEnvironmentReplacesIt) {
  const testing::TempFolder folder;
  setenv("PRESUM_SALT", "shared by two machines", 1);
  const auto given = project_salt(folder / "nowhere/run");
  setenv("PRESUM_SALT", "another", 1);
  const auto other = project_salt(folder / "nowhere/run");
  unsetenv("PRESUM_SALT");
  ASSERT_TRUE(given && other);
  EXPECT_EQ(*given, name_hash("shared by two machines"));
  EXPECT_NE(*given, *other);
}

TEST_F(ProjectSalt, AnEmptyVariableIsNone) {
  const testing::TempFolder folder;
  setenv("PRESUM_SALT", "", 1);
  const auto salt = project_salt(folder / "run");
  unsetenv("PRESUM_SALT");
  ASSERT_TRUE(salt);
  EXPECT_EQ(*project_salt(folder / "run"), *salt) << "that of the file";
}

TEST_F(ProjectSalt, AFileThatIsThereIsUsed) {
  const testing::TempFolder folder;
  testing::write_file(folder / ".presum-salt", "  copied-from-elsewhere\n");
  EXPECT_EQ(*project_salt(folder / "run"), name_hash("copied-from-elsewhere"));
}

TEST_F(ProjectSalt, AFileWithoutASaltIsAnError) {
  const testing::TempFolder folder;
  testing::write_file(folder / ".presum-salt", " \n");
  const auto salt = project_salt(folder / "run");
  ASSERT_FALSE(salt);
  EXPECT_EQ(salt.error().code, ErrorCode::kIo);
  EXPECT_NE(salt.error().message.find("PRESUM_SALT"), std::string::npos) << "what to do";
}

TEST_F(ProjectSalt, AnEmptyFileIsMadeAnew) {
  const testing::TempFolder folder;
  testing::write_file(folder / ".presum-salt", "");
  const auto salt = project_salt(folder / "run");
  ASSERT_TRUE(salt);
  EXPECT_EQ(*project_salt(folder / "run"), *salt);
}

TEST_F(ProjectSalt, WhatCouldNotBeWrittenIsNotLeft) {
  const testing::TempFolder folder;
  const pid_t child = fork();
  if (child == 0) {
    const rlimit none{0, 0};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &none);
    _exit(project_salt(folder / "run") ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST_F(ProjectSalt, ProcessesThatStartTogetherAgree) {
  const testing::TempFolder folder;
  EXPECT_EQ(salts_of(std::vector(kProcesses, folder / "run"), folder),
            std::set<std::string>{std::to_string(*project_salt(folder / "run"))});
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), kProcesses + 1)
      << "nothing is left behind";
}

TEST_F(ProjectSalt, RandomOnesDiffer) { EXPECT_NE(random_salt(), random_salt()); }

}  // namespace
}  // namespace presum::runlog
