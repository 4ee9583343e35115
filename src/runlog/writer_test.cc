// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "runlog/run_testing.h"
#include "runlog/schema.h"
#include "runlog/sqlite.h"

namespace presum::runlog {
namespace {

TEST(Segments, OfRecordingsThatBeginAtOnceAreTwo) {
  for (int round = 0; round < 20; ++round) {
    const TempFolder folder;
    FakeClock clock;
    std::array<std::optional<Writer>, 2> writers;
    {
      std::vector<std::jthread> threads;
      for (auto& writer : writers) {
        threads.emplace_back([&] {
          auto opened = Writer::open(folder / "run", clock.function(), Journal::kWal);
          if (opened) writer.emplace(*std::move(opened));
        });
      }
    }
    ASSERT_TRUE(writers[0] && writers[1]);
    EXPECT_EQ(writers[0]->segment() + writers[1]->segment(), 3U);
  }
}

// ---- commits

TEST(Writer, CommitsASecondAfterTheFirstRecordAndNotBefore) {
  const TempFolder folder;
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock);
  add_all(writer, {plain_step(1, 0)});
  ASSERT_TRUE(writer.tick());
  EXPECT_EQ(count_steps(folder / "run"), 0U);
  clock.advance(0.9);
  add_all(writer, {plain_step(1, 1)});
  ASSERT_TRUE(writer.tick());
  EXPECT_EQ(count_steps(folder / "run"), 0U);
  clock.advance(0.2);
  EXPECT_EQ(count_steps(folder / "run"), 0U) << "only tick commits";
  ASSERT_TRUE(writer.tick());
  EXPECT_EQ(count_steps(folder / "run"), 2U);
  // The second starts again.
  add_all(writer, {plain_step(1, 2)});
  ASSERT_TRUE(writer.tick());
  EXPECT_EQ(count_steps(folder / "run"), 2U);
}

TEST(Writer, IsReadableWhileOpen) {
  const TempFolder folder;
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock);
  const auto log = RunLog::open(folder / "run");
  ASSERT_TRUE(log) << log.error().message;
  EXPECT_TRUE(log->steps()->empty());
  for (std::uint64_t s = 0; s < 3; ++s) {
    add_all(writer, {plain_step(1, s)});
    clock.advance(1.5);
    ASSERT_TRUE(writer.tick());
    EXPECT_EQ(log->steps()->size(), s + 1) << "the same reader sees it grow";
  }
}

TEST(Writer, CloseMarksTheSegmentAndLeavesOneFile) {
  const TempFolder folder;
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock);
  add_all(writer, {plain_step(1, 0)});
  ASSERT_TRUE(writer.close());
  ASSERT_TRUE(writer.close()) << "again is fine";
  EXPECT_EQ(database(folder / "run").query_integer("SELECT closed FROM segment"), 1U);
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "run")) {
    files.push_back(entry.path().filename().string());
  }
  EXPECT_EQ(files, std::vector<std::string>{kFileName});
}

TEST(Writer, RefusesRecordsAfterClose) {
  const TempFolder folder;
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock);
  ASSERT_TRUE(writer.close());
  EXPECT_FALSE(writer.add(plain_step(1, 0)));
  EXPECT_FALSE(writer.add(hello_of(1, 0, 1)));
  EXPECT_FALSE(writer.add(packet::Note{}));
  EXPECT_FALSE(writer.replace({writer.segment(), 0, 0}, {}, {}));
  EXPECT_FALSE(writer.save_detector(0, 0, "x"));
  EXPECT_FALSE(writer.preflight(0));
  EXPECT_TRUE(writer.tick());
  EXPECT_EQ(count_steps(folder / "run"), 0U);
}

TEST(Writer, IsDestroyedWithoutCloseAndKeepsItsSteps) {
  const TempFolder folder;
  FakeClock clock;
  {
    Writer writer = open_writer(folder / "run", clock);
    add_all(writer, {plain_step(1, 0)});
  }
  EXPECT_EQ(read_steps(folder / "run").size(), 1U);
  EXPECT_EQ(database(folder / "run").query_integer("SELECT closed FROM segment"), 0U);
  EXPECT_EQ(open_writer(folder / "run", clock).segment(), 2U);
}

TEST(Writer, AProcessThatDiesKeepsItsCommittedSteps) {
  const TempFolder folder;
  const pid_t child = fork();
  if (child == 0) {
    FakeClock clock;
    Writer writer = open_writer(folder / "run", clock);
    add_all(writer, {plain_step(1, 0)});
    clock.advance(2);
    static_cast<void>(writer.tick());
    add_all(writer, {plain_step(1, 1)});
    _exit(0);  // the writer is neither destroyed nor closed
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_EQ(read_steps(folder / "run").size(), 1U);
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock);
  EXPECT_EQ(writer.segment(), 2U);
  add_all(writer, {plain_step(2, 0)});
  ASSERT_TRUE(writer.close());
  EXPECT_EQ(read_steps(folder / "run").size(), 2U);
}

// ---- an incomplete record

TEST(Writer, NotesSinceWhenAndWhyARecordIsIncomplete) {
  const TempFolder folder;
  FakeClock clock;
  auto writer = Writer::open(folder / "run", clock.function(), Journal::kWal);
  ASSERT_TRUE(writer->add(plain_step(1, 0)));
  ASSERT_TRUE(writer->add(plain_step(1, 1)));
  ASSERT_TRUE(writer->mark_incomplete("the first reason"));
  ASSERT_TRUE(writer->add(plain_step(1, 2)));
  ASSERT_TRUE(writer->mark_incomplete("a later one"));
  ASSERT_TRUE(writer->count({.damaged = 1, .foreign = 2, .duplicate = 3, .late = 4}));
  ASSERT_TRUE(writer->close());
  const auto segments = RunLog::open(folder / "run")->segments();
  ASSERT_EQ(segments->size(), 1U);
  const SegmentInfo& segment = segments->front();
  EXPECT_TRUE(segment.closed);
  EXPECT_EQ(segment.incomplete, "the first reason");
  EXPECT_EQ(segment.incomplete_after, 1U);
  EXPECT_EQ(segment.packets, (PacketCounts{1, 2, 3, 4}));
}

TEST(Writer, ThatIsAbandonedKeepsWhatCameAndIsNotClosed) {
  const TempFolder folder;
  FakeClock clock;
  auto writer = Writer::open(folder / "run", clock.function(), Journal::kWal);
  ASSERT_TRUE(writer->add(plain_step(1, 0)));
  writer->abandon("a thread has failed");
  EXPECT_FALSE(writer->add(plain_step(1, 1)));
  EXPECT_TRUE(writer->close()) << "nothing is left to do";
  const auto log = RunLog::open(folder / "run");
  EXPECT_EQ(log->steps()->size(), 1U);
  const auto segments = log->segments();
  EXPECT_FALSE(segments->front().closed);
  EXPECT_EQ(segments->front().incomplete, "a thread has failed");
  EXPECT_EQ(segments->front().incomplete_after, 0U);
  Writer::open(folder / "early", clock.function(), Journal::kWal)->abandon("too early");
  EXPECT_FALSE(RunLog::open(folder / "early")->segments()->front().incomplete_after);
}

TEST(Writer, RemovesWhatAKilledOneLeftOfADatabaseThatItWasMaking) {
  const TempFolder folder;
  std::filesystem::create_directories(folder / "run");
  const auto old = folder / "run" / "presum.db.new-0123";
  const auto under_way = folder / "run" / "presum.db.new-4567";
  for (const auto& file : {old, under_way}) write_file(file, "half of a database");
  std::filesystem::last_write_time(
      old, std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  make_run(folder / "run", {plain_step(1, 0)});
  EXPECT_FALSE(std::filesystem::exists(old));
  EXPECT_TRUE(std::filesystem::exists(under_way)) << "of another writer";
}

TEST(Writer, StepsThatLackPacketsAreReadBackAsSuch) {
  const TempFolder folder;
  StepRecord step = plain_step(1, 0, 2);
  step.workers_expected = 3;
  StepRecord other = plain_step(1, 1, 2);
  other.workers_expected = 3;
  other.missing_replicas = {2};
  make_run(folder / "run", {step, other});
  const auto steps = RunLog::open(folder / "run")->steps();
  EXPECT_EQ((*steps)[0].workers_seen, 2U);
  EXPECT_TRUE((*steps)[0].lacks_packets());
  EXPECT_FALSE((*steps)[1].lacks_packets());
}

// ---- detectors, preflight

TEST(DetectorState, IsTheLastOneOfAnySegment) {
  const TempFolder folder;
  const std::string bytes("\0state\xFF\0", 8);
  FakeClock clock;
  {
    Writer writer = open_writer(folder / "run", clock);
    EXPECT_EQ(*writer.saved_detector(2, 3), std::nullopt);
    ASSERT_TRUE(writer.save_detector(2, 3, "before"));
    ASSERT_TRUE(writer.save_detector(2, 3, bytes));
    ASSERT_TRUE(writer.save_detector(0, 0, ""));
    EXPECT_EQ(*writer.saved_detector(2, 3), (SavedDetector{1, bytes}))
        << "also before it is committed";
    ASSERT_TRUE(writer.close());
  }
  {
    Writer writer = open_writer(folder / "run", clock);
    EXPECT_EQ(*writer.saved_detector(2, 3), (SavedDetector{1, bytes}));
    EXPECT_EQ(*writer.saved_detector(0, 0), (SavedDetector{1, ""}));
    EXPECT_EQ(*writer.saved_detector(2, 0), std::nullopt);
    ASSERT_TRUE(writer.save_detector(2, 3, "after"));
    ASSERT_TRUE(writer.close());
  }
  EXPECT_EQ(*open_writer(folder / "run", clock).saved_detector(2, 3), (SavedDetector{2, "after"}));
}

TEST(Continuation, IsReadAsItWasWritten) {
  const TempFolder folder;
  make_run(folder / "run", {plain_step(1, 0), plain_step(1, 1), plain_step(1, 5)});
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock);
  ASSERT_TRUE(writer.add(Continuation{.model = {2, 1, 3}, .reason = "first"}));
  ASSERT_TRUE(writer.add(Continuation{.model = {2, 1, 3},
                                      .from_segment = 1,
                                      .from_step = 7,
                                      .steps_before = 6,
                                      .detector_steps = 5,
                                      .reason = "second"}));
  ASSERT_TRUE(writer.add(Continuation{.model = {2, 0, 0}, .reason = "none"}));
  ASSERT_TRUE(writer.close());
  const auto log = RunLog::open(folder / "run");
  const auto all = log->continuations();
  ASSERT_EQ(all->size(), 2U);
  EXPECT_EQ(all->at(0).from_segment, std::nullopt);
  EXPECT_EQ(all->at(0).reason, "none");
  const Continuation& one = all->at(1);
  EXPECT_EQ(one.model, (ModelKey{2, 1, 3}));
  EXPECT_EQ(std::tuple(one.from_segment, one.from_step, one.steps_before, one.detector_steps),
            std::tuple(1U, 7U, 6U, 5U));
  EXPECT_EQ(one.reason, "second");
}

TEST(StepCounts, AreThoseOfEachModelAndSegment) {
  const TempFolder folder;
  make_run(folder / "run", {plain_step(1, 0), plain_step(1, 1), plain_step(1, 5)});
  const auto log = RunLog::open(folder / "run");
  const auto counts = log->step_counts();
  ASSERT_TRUE(counts) << counts.error().message;
  ASSERT_EQ(counts->size(), 1U);
  EXPECT_EQ(counts->front().model, (ModelKey{1, 0, 0}));
  EXPECT_EQ(counts->front().steps, 3U);
  EXPECT_EQ(counts->front().end, 6U);
  EXPECT_EQ(*log->steps_before({{1, 0, 0}, 5}), 2U);
  EXPECT_EQ(*log->steps_before({{1, 1, 0}, 5}), 0U);
}

TEST(Preflight, LeavesItsExitCodeInItsSegment) {
  const TempFolder folder;
  make_run(folder / "run", {plain_step(1, 0)});
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock);
  ASSERT_TRUE(writer.preflight(1));
  ASSERT_TRUE(writer.preflight(2));
  ASSERT_TRUE(writer.close());
  const auto segments = RunLog::open(folder / "run")->segments();
  ASSERT_EQ(segments->size(), 2U);
  EXPECT_EQ(segments->at(0).preflight_exit_code, std::nullopt);
  EXPECT_EQ(segments->at(1).preflight_exit_code, 2U);
}

}  // namespace
}  // namespace presum::runlog
