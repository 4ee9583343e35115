// SPDX-License-Identifier: Apache-2.0
#include "base/thread_clock.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "base/clock.h"

namespace presum::base {
namespace {

TEST(ThreadClock, SleepIsNoProcessorTime) {
  const ThreadTimes before = thread_times();
  std::this_thread::sleep_for(std::chrono::milliseconds(40));
  const ThreadTimes after = thread_times();
  EXPECT_LT(after.processor - before.processor, 0.02);
}

TEST(ThreadClock, WorkIsTimeOnAProcessorOrInItsQueue) {
  const ThreadTimes before = thread_times();
  const Seconds began = monotonic_now();
  volatile double x = 1;
  while ((monotonic_now() - began).count() < 0.05) x = x * 1.0000001;
  const ThreadTimes after = thread_times();
  const double wall = (monotonic_now() - began).count();
  ASSERT_FALSE(std::isnan(after.processor));
  EXPECT_GT(after.processor, before.processor);
  if (std::isnan(after.queued)) GTEST_SKIP() << "this system does not tell of its queue";
  const double told = after.processor - before.processor + after.queued - before.queued;
  EXPECT_GT(told, 0.8 * wall);
  EXPECT_LT(told, 1.2 * wall);
}

}  // namespace
}  // namespace presum::base
