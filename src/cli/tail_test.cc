// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "cli/testing.h"

namespace presum::cli {
namespace {

class Tail : public ::testing::Test {
 protected:
  Path run_folder() const { return folder_ / "run"; }

  // A run that is still written.
  runlog::Writer begun() {
    auto writer = runlog::Writer::open(run_folder(), clock_.function(), runlog::Journal::kWal);
    EXPECT_TRUE(writer);
    packet::Hello hello;
    hello.header.segment = 1;
    hello.header.identity.replicas = 2;
    EXPECT_TRUE(writer->add(hello));
    return std::move(*writer);
  }

  void add(runlog::Writer& writer, std::uint64_t from, std::uint64_t to) {
    for (std::uint64_t step = from; step < to; ++step) {
      StepRecord record = step_of(step, 0.5);
      record.grad_norm_mean = 7;
      EXPECT_TRUE(writer.add(record));
    }
    commit(writer);
  }
  void commit(runlog::Writer& writer) {
    clock_.advance(2);
    EXPECT_TRUE(writer.tick());
  }

  TempFolder folder_;
  FakeClock clock_;
};

TEST_F(Tail, ShowsTheLastStepsAndWhatWasFound) {
  auto writer = begun();
  add(writer, 0, 30);
  const std::vector<Finding> found = {finding("duplicate-data", Severity::kCritical)};
  EXPECT_TRUE(writer.replace({1, 0, 0}, found, {}));
  commit(writer);
  const CommandResult ran = run({"tail", run_folder(), "--once", "-n", "3"});
  EXPECT_EQ(ran.code, kOk) << ran.err;
  const auto said = lines(ran.out);
  ASSERT_EQ(said.size(), 5U) << ran.out;
  EXPECT_EQ(words(said[0]).front(), "step");
  EXPECT_EQ(words(said[1]),
            (std::vector<std::string>{"27", "2/2", "0.5", "0.25", "7", "0.125", "0.0625", "1.75"}));
  EXPECT_EQ(words(said[3]).front(), "29");
  EXPECT_EQ(said[4].find("critical: Title of duplicate-data"), 0U) << "no colour in a file";
}

TEST_F(Tail, FollowsUntilTheRunIsClosed) {
  auto writer = begun();
  add(writer, 0, 2);
  auto ran = std::async(std::launch::async, [&] {
    return run({"tail", run_folder(), "--interval", "0.05"});
  });
  for (std::uint64_t step = 2; step < 6; ++step) {
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    add(writer, step, step + 1);
  }
  EXPECT_TRUE(writer.close());
  const CommandResult done = ran.get();
  EXPECT_EQ(done.code, kOk);
  const auto said = lines(done.out);
  ASSERT_EQ(said.size(), 8U) << done.out;
  for (std::size_t step = 0; step < 6; ++step) {
    EXPECT_EQ(words(said[step + 1]).front(), std::to_string(step)) << "each once";
  }
  EXPECT_EQ(said.back(), "-- closed");
}

TEST_F(Tail, SaysThatTheRecordIsIncomplete) {
  auto writer = begun();
  add(writer, 0, 2);
  EXPECT_TRUE(writer.mark_incomplete("the disk is full"));
  EXPECT_TRUE(writer.close());
  const auto said = lines(run({"tail", run_folder()}).out);
  ASSERT_EQ(said.size(), 5U);
  EXPECT_NE(said[3].find("the disk is full"), std::string::npos) << said[3];
}

TEST_F(Tail, NamesTheSlowRankAndTellsStallsOnceAndWhenTheyAreOver) {
  auto writer = begun();
  StepRecord step = step_of(0, 0.5);
  step.workers[0].times = times_of(10, 1);
  step.workers[1].times = times_of(14.2, 1);
  EXPECT_TRUE(writer.add(step));
  Stall stall = {.number = 1, .step = 1, .seconds = 60, .sentence = "rank 5 is in load()"};
  EXPECT_TRUE(writer.add(stall));
  commit(writer);
  auto ran = std::async(std::launch::async, [&] {
    return run({"tail", run_folder(), "--interval", "0.05"});
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  stall.over = true;
  EXPECT_TRUE(writer.add(stall));
  EXPECT_TRUE(writer.close());
  const auto said = lines(ran.get().out);
  ASSERT_EQ(said.size(), 5U);
  EXPECT_NE(said[1].find("1.75  slow 5 x1.42"), std::string::npos) << said[1];
  EXPECT_EQ(said[2], "stall: the job stood still for 60 s at step 1: rank 5 is in load()");
  EXPECT_NE(said[3].find("and went on"), std::string::npos);
}

TEST_F(Tail, ATableNeedsATerminal) {
  auto writer = begun();
  add(writer, 0, 2);
  expect_refusal({"tail", run_folder(), "--table"}, "--table needs a terminal");
}

TEST_F(Tail, RefusesWhatIsNoRun) {
  expect_refusal({"tail", folder_ / "none"}, "no such run");
  expect_refusal({"tail", folder_ / "none", "--interval", "0"}, "interval");
}

}  // namespace
}  // namespace presum::cli
