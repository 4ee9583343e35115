// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <condition_variable>
#include <future>
#include <mutex>
#include <ostream>
#include <streambuf>

#include <fmt/format.h>

#include "cli/testing.h"

namespace presum::cli {
namespace {

// Text that one thread prints and another waits for.
class Printed : public std::streambuf {
 public:
  // Waits until the text appears; returns everything printed so far.
  std::string wait_for(const std::string& text) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return text_.find(text) != std::string::npos; });
    return text_;
  }

 protected:
  std::streamsize xsputn(const char* from, std::streamsize count) override {
    const std::scoped_lock lock(mutex_);
    text_.append(from, static_cast<std::size_t>(count));
    changed_.notify_all();
    return count;
  }
  int_type overflow(int_type one) override {
    const char character = traits_type::to_char_type(one);
    xsputn(&character, 1);
    return one;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string text_;
};

class Tail : public ::testing::Test {
 protected:
  Path run_folder() const { return folder_ / "run"; }

  // A run that is still being written.
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

  // Runs tail on the run, in a separate thread.
  std::future<int> followed() {
    return std::async(std::launch::async, [this] {
      std::ostream out(&printed_);
      std::ostringstream err;
      return main({"tail", run_folder(), "--interval", "0.05"}, out, err);
    });
  }

  TempFolder folder_;
  FakeClock clock_;
  Printed printed_;
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
  EXPECT_EQ(said[4].find("critical: Title of duplicate-data"), 0U) << "no color in a file";
}

TEST_F(Tail, FollowsUntilTheRunIsClosed) {
  auto writer = begun();
  add(writer, 0, 2);
  auto code = followed();
  for (std::uint64_t step = 2; step < 6; ++step) {
    printed_.wait_for(fmt::format("\n{:>9} ", step - 1));
    add(writer, step, step + 1);
  }
  EXPECT_TRUE(writer.close());
  EXPECT_EQ(code.get(), kOk);
  const auto said = lines(printed_.wait_for("-- closed\n"));
  ASSERT_EQ(said.size(), 8U);
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
  auto code = followed();
  printed_.wait_for("stall: ");
  stall.over = true;
  EXPECT_TRUE(writer.add(stall));
  EXPECT_TRUE(writer.close());
  EXPECT_EQ(code.get(), kOk);
  const auto said = lines(printed_.wait_for("-- closed\n"));
  ASSERT_EQ(said.size(), 5U);
  EXPECT_NE(said[1].find("1.75  slow 5 x1.42"), std::string::npos) << said[1];
  EXPECT_EQ(said[2], "stall: the job stalled for 60 s at step 1: rank 5 is in load()");
  EXPECT_NE(said[3].find("then continued"), std::string::npos);
}

TEST_F(Tail, RefusesWhatIsNoRun) {
  expect_refusal({"tail", folder_ / "none"}, "no such run");
  expect_refusal({"tail", folder_ / "none", "--interval", "0"}, "interval");
}

}  // namespace
}  // namespace presum::cli
