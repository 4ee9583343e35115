// SPDX-License-Identifier: Apache-2.0
#include "watch/watchdog.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <mutex>
#include <string>
#include <thread>

namespace presum::watch {
namespace {

struct Said {
  std::mutex mutex;
  std::vector<std::string> lines;
  void operator()(const std::string& line) {
    const std::lock_guard lock(mutex);
    lines.push_back(line);
  }
  std::size_t count() {
    const std::lock_guard lock(mutex);
    return lines.size();
  }
};

Watchdog::Options options(Said& said) {
  return {.pulse = {.identity = {}, .host = "h", .period = 0.05, .stall_seconds = 0.3},
          .thread = static_cast<std::uint64_t>(gettid()),
          .say = [&](const std::string& line) { said(line); }};
}

void pause(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

TEST(Watchdog, IsSilentAsLongAsTheInterpreterAnswers) {
  Said said;
  Watchdog dog(options(said));
  dog.reaches({}, {1, 1});
  step::activity().event(0, 0, 0, Phase::kForward);
  for (int i = 0; i < 20; ++i) {
    EXPECT_FALSE(dog.beat({}).bytes.empty());
    pause(30);
  }
  EXPECT_EQ(said.count(), 0U);
}

TEST(Watchdog, SaysALineOfTheProcessThatRecords) {
  Said said;
  Watchdog dog(options(said));
  dog.reaches({}, {1, 1});
  step::activity().event(0, 4, 0, Phase::kForward);
  static_cast<void>(dog.beat({"", "load() of train.py:3", "", ""}));
  pause(900);
  ASSERT_EQ(said.count(), 1U);
  EXPECT_NE(said.lines.front().find("load() of train.py:3"), std::string::npos);
  EXPECT_NE(said.lines.front().find("step 4"), std::string::npos);
}

TEST(Watchdog, OfAProcessThatWasForkedNothingIsTold) {
  Said said;
  Watchdog dog(options(said));
  const pid_t child = fork();
  if (child == 0) {
    const bool quiet = dog.beat({}).bytes.empty();
    dog.~Watchdog();
    _exit(quiet ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace presum::watch
