// SPDX-License-Identifier: Apache-2.0
#include "watch/thread_state.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <future>
#include <thread>

namespace presum::watch {
namespace {

TEST(ThreadState, TellsASleepingThreadFromOneThatWorks) {
  std::atomic<pid_t> number = 0;
  std::atomic<bool> ends = false;
  std::promise<void> works;
  std::thread thread([&] {
    number = gettid();
    works.get_future().wait();
    while (!ends) {
    }
  });
  while (number == 0) std::this_thread::yield();
  const auto id = static_cast<std::uint64_t>(number);
  while (thread_state(id).state != 'S') std::this_thread::yield();
  const double before = thread_state(id).processor;
  works.set_value();
  while (thread_state(id).processor <= before) std::this_thread::yield();
  EXPECT_EQ(thread_state(id).state, 'R');
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
