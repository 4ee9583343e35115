// SPDX-License-Identifier: Apache-2.0
#include "watch/thread_state.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

namespace presum::watch {
namespace {

TEST(ThreadState, TellsASleepingThreadFromOneThatWorks) {
  std::atomic<pid_t> number = 0;
  std::atomic<bool> works = false;
  std::atomic<bool> ends = false;
  std::thread thread([&] {
    number = gettid();
    while (!ends) {
      if (!works) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  while (number == 0) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto id = static_cast<std::uint64_t>(number);
  EXPECT_EQ(thread_state(id).state, 'S');
  const double before = thread_state(id).processor;
  works = true;
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(thread_state(id).state, 'R');
  EXPECT_GT(thread_state(id).processor, before);
  ends = true;
  thread.join();
}

TEST(ThreadState, OfNoThreadNothingIsKnown) {
  const ThreadState none = thread_state(0);
  EXPECT_EQ(none.state, '?');
  EXPECT_TRUE(std::isnan(none.processor));
}

}  // namespace
}  // namespace presum::watch
