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

#include "base/hash.h"
#include "runlog/testing.h"

namespace presum::runlog {
namespace {

TEST(Salt, IsMadeOncePrivatelyAndKept) {
  const testing::TempFolder folder;
  const auto first = project_salt(folder / "runs/a");
  ASSERT_FALSE(first);  // no folder to hold it
  std::filesystem::create_directories(folder / "runs");
  const auto made = project_salt(folder / "runs/a");
  ASSERT_TRUE(made);
  EXPECT_EQ(*project_salt(folder / "runs/b"), *made);
  EXPECT_EQ(*project_salt(folder / "runs/a/"), *made);
  struct stat info {};
  ASSERT_EQ(stat((folder / "runs/.presum-salt").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST(Salt, OfAnotherProjectDiffers) {
  const testing::TempFolder a;
  const testing::TempFolder b;
  EXPECT_NE(*project_salt(a / "run"), *project_salt(b / "run"));
}

TEST(Salt, TheEnvironmentReplacesIt) {
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

TEST(Salt, AnEmptyVariableIsNone) {
  const testing::TempFolder folder;
  setenv("PRESUM_SALT", "", 1);
  const auto salt = project_salt(folder / "run");
  unsetenv("PRESUM_SALT");
  ASSERT_TRUE(salt);
  EXPECT_EQ(*project_salt(folder / "run"), *salt) << "that of the file";
}

TEST(Salt, AFileThatIsThereIsUsed) {
  const testing::TempFolder folder;
  testing::write_file(folder / ".presum-salt", "  copied-from-elsewhere\n");
  EXPECT_EQ(*project_salt(folder / "run"), name_hash("copied-from-elsewhere"));
}

TEST(Salt, AFileWithoutASaltIsAnError) {
  const testing::TempFolder folder;
  testing::write_file(folder / ".presum-salt", " \n");
  const auto salt = project_salt(folder / "run");
  ASSERT_FALSE(salt);
  EXPECT_EQ(salt.error().code, ErrorCode::kIo);
  EXPECT_NE(salt.error().message.find("PRESUM_SALT"), std::string::npos) << "what to do";
}

TEST(Salt, AnEmptyFileIsMadeAnew) {
  const testing::TempFolder folder;
  testing::write_file(folder / ".presum-salt", "");
  const auto salt = project_salt(folder / "run");
  ASSERT_TRUE(salt);
  EXPECT_EQ(*project_salt(folder / "run"), *salt);
}

TEST(Salt, WhatCouldNotBeWrittenIsNotLeft) {
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

TEST(Salt, ProcessesThatStartTogetherAgree) {
  constexpr int kProcesses = 8;
  const testing::TempFolder folder;
  for (int i = 0; i < kProcesses; ++i) {
    if (fork() != 0) continue;
    const auto salt = project_salt(folder / "run");
    testing::write_file(folder / std::to_string(i), salt ? std::to_string(*salt) : "none");
    _exit(0);
  }
  std::set<std::string> salts;
  while (wait(nullptr) > 0) continue;
  for (int i = 0; i < kProcesses; ++i) {
    salts.insert(testing::read_file(folder / std::to_string(i)));
  }
  EXPECT_EQ(salts, std::set<std::string>{std::to_string(*project_salt(folder / "run"))});
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), kProcesses + 1)
      << "nothing is left behind";
}

TEST(Salt, RandomOnesDiffer) { EXPECT_NE(random_salt(), random_salt()); }

}  // namespace
}  // namespace presum::runlog
