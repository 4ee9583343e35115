// SPDX-License-Identifier: Apache-2.0
#include "presum/aggregator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "detect/detector.h"
#include "judge/judgment.h"
#include "packet/packet.h"
#include "presum/run_log.h"
#include "runlog/sqlite.h"
#include "runlog/testing.h"

namespace presum {
namespace {

using testing::FakeClock;
using testing::TempFolder;
using testing::write_file;

// An aggregator with its own clock, fed by hand.
class FedAggregator {
 public:
  FedAggregator() : run_(folder_ / "run"), aggregator_(open()) {}
  explicit FedAggregator(std::filesystem::path run) : run_(std::move(run)), aggregator_(open()) {}

  Aggregator& operator*() { return aggregator_; }
  Aggregator* operator->() { return &aggregator_; }
  FakeClock& clock() { return clock_; }
  const std::filesystem::path& run() const { return run_; }

  template <class Message>
  void ingest(Message message) {
    message.header.run = aggregator_.announcement().run;
    message.header.segment = aggregator_.announcement().segment;
    ingest_bytes(packet::encode(message).bytes);
  }
  void ingest_bytes(const std::vector<std::byte>& bytes) {
    const auto status = aggregator_.ingest(bytes);
    ASSERT_TRUE(status) << status.error().message;
  }
  void close() {
    const auto status = aggregator_.close();
    ASSERT_TRUE(status) << status.error().message;
  }
  std::uint64_t steps() const { return aggregator_.counters().steps; }

 private:
  Aggregator open() {
    auto aggregator = Aggregator::open({.run = run_, .clock = clock_.function()});
    EXPECT_TRUE(aggregator) << aggregator.error().message;
    return std::move(*aggregator);
  }

  TempFolder folder_;
  std::filesystem::path run_;
  FakeClock clock_;
  Aggregator aggregator_;
};

packet::Step step_of(std::uint64_t step, std::uint32_t replica, std::uint32_t replicas,
                     std::uint32_t model_index = 0, std::uint32_t dp_group = 0) {
  packet::Step s;
  s.header.identity = {.model_index = model_index,
                       .replica = replica,
                       .dp_group = dp_group,
                       .rank = replica,
                       .replicas = replicas};
  s.header.step = step;
  s.micro_batches = 1;
  s.micro = {{1.0 + replica, 1, 10}};
  s.total = {4, 1, 0, step * 100 + replica + 1};
  return s;
}

packet::Note goodbye(std::uint32_t replica, std::uint32_t replicas, std::uint32_t model_index = 0) {
  packet::Note note;
  note.header.identity = {
      .model_index = model_index, .replica = replica, .rank = replica, .replicas = replicas};
  note.final = true;
  return note;
}

std::vector<StepRecord> read_steps(const std::filesystem::path& run) {
  const auto log = RunLog::open(run);
  auto steps = log ? log->steps() : log.error();
  EXPECT_TRUE(steps) << steps.error().message;
  return steps.value_or(std::vector<StepRecord>());
}

// ---- one thread, hand-made packets

TEST(Aggregator, WritesAStepOnceAllItsWorkersAreThere) {
  FedAggregator aggregator;
  aggregator.ingest(step_of(0, 1, 2));
  EXPECT_EQ(aggregator.steps(), 0U);
  aggregator.ingest(step_of(0, 0, 2));
  EXPECT_EQ(aggregator.steps(), 1U);
  EXPECT_EQ(aggregator->counters().packets, 2U);
  aggregator.close();
  const auto steps = read_steps(aggregator.run());
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_EQ(steps[0].model.segment, 1U);
  EXPECT_EQ(steps[0].workers_expected, 2U);
  EXPECT_EQ(steps[0].loss_mean, 1.5);
  EXPECT_EQ(steps[0].loss_std, 0.5);
}

TEST(Aggregator, CountsPacketsOfAnotherRunOrSegmentAsForeign) {
  FedAggregator aggregator;
  auto stale = step_of(0, 0, 1);
  stale.header.run = aggregator->announcement().run + 2;
  stale.header.segment = aggregator->announcement().segment;
  aggregator.ingest_bytes(packet::encode(stale).bytes);
  stale.header.run = aggregator->announcement().run;
  stale.header.segment = aggregator->announcement().segment + 1;
  aggregator.ingest_bytes(packet::encode(stale).bytes);
  stale.header.run = 0;  // never stamped
  stale.header.segment = 0;
  aggregator.ingest_bytes(packet::encode(stale).bytes);
  EXPECT_EQ(aggregator->counters().foreign, 3U);
  EXPECT_EQ(aggregator->counters().packets, 0U);
  EXPECT_EQ(aggregator.steps(), 0U);
}

TEST(Aggregator, DoesNotWaitForWorkersThatSaidGoodbye) {
  FedAggregator aggregator;
  aggregator.ingest(step_of(0, 0, 2));
  aggregator.ingest(goodbye(1, 2));
  EXPECT_EQ(aggregator.steps(), 1U);
}

TEST(Aggregator, KnowsWhenEveryoneLeft) {
  FedAggregator aggregator;
  EXPECT_FALSE(aggregator->everyone_left());
  aggregator.ingest(step_of(0, 0, 2));
  aggregator.ingest(goodbye(1, 2));
  aggregator.ingest(goodbye(1, 2));
  EXPECT_FALSE(aggregator->everyone_left()) << "twice is once";
  auto words = goodbye(0, 2);
  words.final = false;
  words.text = "a note is no goodbye";
  aggregator.ingest(words);
  EXPECT_FALSE(aggregator->everyone_left());
  aggregator.ingest(goodbye(0, 2));
  EXPECT_TRUE(aggregator->everyone_left());
  EXPECT_EQ(aggregator->ranks_heard(), 2U);
  aggregator.ingest(goodbye(1, 2, 1));
  EXPECT_FALSE(aggregator->everyone_left()) << "another model of theirs";
  aggregator.ingest(goodbye(0, 2, 1));
  EXPECT_TRUE(aggregator->everyone_left());
}

TEST(Aggregator, ModelsAreNumberedAmongThoseWithAsManyWorkers) {
  FedAggregator aggregator;
  aggregator.ingest(step_of(0, 0, 3));
  aggregator.ingest(step_of(0, 1, 3));
  aggregator.ingest(step_of(0, 1, 2));  // a model that rank 2 of the other does not have
  aggregator.ingest(step_of(0, 2, 3));
  aggregator.ingest(step_of(0, 0, 2));
  aggregator.close();
  const auto steps = read_steps(aggregator.run());
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_EQ(steps[0].model.model_index, 0U);
  EXPECT_EQ(steps[0].workers_seen, 3U);
  EXPECT_EQ(steps[1].model.model_index, 1U);
  EXPECT_EQ(steps[1].workers_seen, 2U);
}

TEST(Aggregator, KeepsTwoModulesAndTwoShardsApart) {
  FedAggregator aggregator;
  for (std::uint64_t s = 0; s < 3; ++s) {
    for (std::uint32_t replica = 0; replica < 2; ++replica) {
      for (std::uint32_t model_index = 0; model_index < 2; ++model_index) {
        for (std::uint32_t dp_group = 0; dp_group < 2; ++dp_group) {
          aggregator.ingest(step_of(s, replica, 2, model_index, dp_group));
        }
      }
    }
  }
  EXPECT_EQ(aggregator->counters().records, 12U);
  EXPECT_EQ(aggregator.steps(), 3U) << "they train at the same time";
  aggregator.close();
  const auto steps = read_steps(aggregator.run());
  ASSERT_EQ(steps.size(), 12U);
  for (std::size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(steps[i].model.model_index, i / 6);
    EXPECT_EQ(steps[i].model.dp_group, i / 3 % 2);
    EXPECT_EQ(steps[i].step, i % 3);
  }
}

TEST(Aggregator, CloseWritesWhatIsStillOpen) {
  FedAggregator aggregator;
  aggregator.ingest(step_of(0, 0, 2));
  aggregator.ingest(step_of(3, 1, 2));
  aggregator.close();
  EXPECT_EQ(aggregator.steps(), 2U);
  const auto steps = read_steps(aggregator.run());
  ASSERT_EQ(steps.size(), 2U);
  EXPECT_EQ(steps[1].step, 3U);
  EXPECT_EQ(steps[1].workers_seen, 1U);
  EXPECT_TRUE(steps[1].missing_replicas.empty()) << "its packet may be on its way";
  // After that nothing more is accepted, and nothing breaks.
  aggregator.ingest(step_of(4, 0, 2));
  EXPECT_TRUE(aggregator->tick());
  EXPECT_TRUE(aggregator->close());
  EXPECT_EQ(read_steps(aggregator.run()).size(), 2U);
}

TEST(Aggregator, NoiseScaleIsOnePerModel) {
  FedAggregator aggregator;
  const auto with_reduced = [](packet::Step step, double reduced_squares) {
    step.reduced = GradientSums{.sum_squares = reduced_squares, .fingerprint = 1};
    return step;
  };
  for (std::uint32_t model_index = 0; model_index < 2; ++model_index) {
    for (std::uint32_t replica = 0; replica < 2; ++replica) {
      aggregator.ingest(
          with_reduced(step_of(0, replica, 2, model_index), model_index == 0 ? 3 : 2.5));
    }
  }
  aggregator.close();
  const auto steps = read_steps(aggregator.run());
  ASSERT_EQ(steps.size(), 2U);
  // |g_i|^2 = 4, W = 2: signal 2 |G|^2 - 4, noise 2 (4 - |G|^2).
  EXPECT_NEAR(steps[0].noise_scale, 2.0 / 2, 1e-12);
  EXPECT_NEAR(steps[1].noise_scale, 3.0 / 1, 1e-12);
}

TEST(Aggregator, SaysWhatIsWrongWithItsFolder) {
  const TempFolder folder;
  write_file(folder / "taken", "x");
  const auto blocked = Aggregator::open({.run = folder / "taken", .clock = nullptr});
  ASSERT_FALSE(blocked);
  EXPECT_EQ(blocked.error().code, ErrorCode::kIo);
  std::filesystem::create_directories(folder / "run");
  write_file(folder / "run/presum.db", std::string(4096, 'z'));
  const auto damaged = Aggregator::open({.run = folder / "run", .clock = nullptr});
  ASSERT_FALSE(damaged);
  EXPECT_EQ(damaged.error().code, ErrorCode::kCorrupt);
}

TEST(Aggregator, AnErrorOfTheRunLogStopsTheWritingForGood) {
  FedAggregator aggregator;
  {  // Another program drops a table of the run log.
    auto db =
        runlog::Database::open(aggregator.run() / "presum.db", runlog::Database::Mode::kWrite);
    ASSERT_TRUE(db);
    ASSERT_TRUE(db->execute("DROP VIEW missing; DROP TABLE missing_worker; DROP TABLE step;"));
  }
  Packet packet = packet::encode(step_of(0, 0, 1));
  packet.stamp(aggregator->announcement());
  const auto first = aggregator->ingest(packet.bytes);
  ASSERT_FALSE(first);
  const auto second = aggregator->tick();
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().message, first.error().message);
  EXPECT_FALSE(aggregator->close());
  EXPECT_EQ(aggregator->incomplete(), first.error().message + " (before the first step)");
}

bool closed_in_order(const std::filesystem::path& run) {
  return RunLog::open(run)->segments()->front().closed;
}

TEST(Aggregator, AfterAnErrorTheSegmentIsNotMarkedAsEndedInOrder) {
  FedAggregator aggregator;
  for (std::uint64_t s = 0; s < 20; ++s) {
    for (std::uint32_t r = 0; r < 2; ++r) aggregator.ingest(step_of(s, r, 2));
  }
  EXPECT_EQ(aggregator->verdict(), Verdict::kConsistent);
  {
    auto db =
        runlog::Database::open(aggregator.run() / "presum.db", runlog::Database::Mode::kWrite);
    aggregator.clock().advance(2);
    ASSERT_TRUE(aggregator->tick());
    ASSERT_TRUE(
        db->execute("CREATE TRIGGER planted BEFORE INSERT ON group_step BEGIN "
                    "SELECT RAISE(ABORT, 'planted'); END;"));
  }
  auto step = step_of(20, 0, 1);
  step.groups.resize(1);
  Packet packet = packet::encode(step);
  packet.stamp(aggregator->announcement());
  ASSERT_FALSE(aggregator->ingest(packet.bytes));
  EXPECT_EQ(aggregator->verdict(), Verdict::kInsufficientEvidence);
  EXPECT_FALSE(aggregator->close());
  const auto segment = RunLog::open(aggregator.run())->segments()->front();
  EXPECT_FALSE(segment.closed);
  EXPECT_NE(segment.incomplete, "");
  EXPECT_EQ(segment.incomplete_after, 19U);
}

TEST(Aggregator, ACallerThatFailsLeavesAnIncompleteSegment) {
  FedAggregator aggregator;
  for (std::uint32_t r = 0; r < 2; ++r) aggregator.ingest(step_of(0, r, 2));
  aggregator->abandon("planted failure");
  EXPECT_EQ(aggregator->incomplete(), "planted failure (after step 0)");
  EXPECT_TRUE(aggregator->close()) << "nothing is left to do";
  EXPECT_FALSE(closed_in_order(aggregator.run()));
  EXPECT_EQ(RunLog::open(aggregator.run())->segments()->front().incomplete, "planted failure");
}

// If every rank's recording breaks, no rank is missing among the others.
TEST(Aggregator, ARunWhoseWorkersBrokeIsNotConsistent) {
  for (const bool broken : {false, true}) {
    FedAggregator aggregator;
    for (std::uint64_t s = 0; s < 20; ++s) {
      for (std::uint32_t r = 0; r < 2; ++r) aggregator.ingest(step_of(s, r, 2));
    }
    for (std::uint32_t r = 0; r < 2; ++r) {
      packet::Note note = goodbye(r, 2);
      note.broken = true;
      note.final = false;
      note.text = "planted failure";
      if (broken) aggregator.ingest(note);
      aggregator.ingest(goodbye(r, 2));
    }
    EXPECT_EQ(*aggregator->end_preflight(), broken ? 2 : 0);
    aggregator.close();
    const auto segment = RunLog::open(aggregator.run())->segments()->front();
    EXPECT_EQ(segment.incomplete, broken ? "on rank 0: planted failure" : "");
    EXPECT_EQ(segment.incomplete_after.has_value(), broken);
  }
}

TEST(Aggregator, WorkersWhosePacketsCannotComeAreNotMissing) {
  FedAggregator aggregator;
  for (std::uint64_t s = 0; s < 10; ++s) {
    for (std::uint32_t r = 0; r < 4; ++r) aggregator.ingest(step_of(s, r, 4));
  }
  ASSERT_TRUE(aggregator->lose_others("the store is gone"));
  for (std::uint64_t s = 10; s < 20; ++s) aggregator.ingest(step_of(s, 0, 4));
  aggregator.close();
  const auto findings = RunLog::open(aggregator.run())->findings();
  for (const Finding& f : *findings) EXPECT_NE(f.check, "missing-rank");
  const auto segment = RunLog::open(aggregator.run())->segments()->front();
  EXPECT_EQ(segment.incomplete, "the store is gone");
  EXPECT_EQ(segment.incomplete_after, 9U);
  EXPECT_TRUE(segment.closed);
}

TEST(Aggregator, StoresHowManyPacketsItCouldNotUse) {
  FedAggregator aggregator;
  const auto twice = [&] { aggregator.ingest(step_of(0, 0, 2)); };
  twice();
  twice();
  aggregator.ingest(step_of(0, 1, 2));
  aggregator.ingest(step_of(0, 1, 2));
  const std::vector<std::byte> noise(100);
  ASSERT_TRUE(aggregator->ingest(noise));
  aggregator.close();
  const auto packets = RunLog::open(aggregator.run())->segments()->front().packets;
  EXPECT_EQ(packets, (PacketCounts{.damaged = 1, .duplicate = 1, .late = 1}));
}

// ---- findings

constexpr std::uint32_t kWorkers = 4;

// A healthy step: losses and norms are noise, gradients differ.
packet::Step healthy(std::uint64_t step, std::uint32_t replica, std::uint32_t model_index = 0) {
  std::mt19937_64 random(step * 1000 + replica * 10 + model_index);
  std::normal_distribution<double> normal;
  packet::Step s = step_of(step, replica, kWorkers, model_index);
  s.micro = {{2 + 0.1 * normal(random), 1, 100}};
  s.total = {std::exp(0.2 * normal(random)), 0.1, 0, random()};
  s.elements = 1000;
  s.optimizer_step = step + 1;
  return s;
}

packet::Step with_nan(packet::Step step) {
  step.total.sum_squares = NAN;
  step.total.nonfinite = 3;
  return step;
}

packet::Hello hello_of(std::uint32_t replica) {
  packet::Hello hello;
  hello.header.identity = {.replica = replica, .rank = replica, .replicas = kWorkers};
  hello.facts.host = "node-" + std::to_string(replica);
  return hello;
}

void feed(FedAggregator& aggregator, std::uint64_t first, std::uint64_t last,
          std::uint32_t model_index = 0) {
  for (std::uint64_t s = first; s < last; ++s) {
    for (std::uint32_t r = 0; r < kWorkers; ++r) aggregator.ingest(healthy(s, r, model_index));
  }
}

// Rank 1 of 4 has NaN in its gradient.
void feed_nan(FedAggregator& aggregator, std::uint64_t step, std::uint32_t model_index = 0) {
  for (std::uint32_t r = 0; r < kWorkers; ++r) {
    const auto s = healthy(step, r, model_index);
    aggregator.ingest(r == 1 ? with_nan(s) : s);
  }
}

void expect_nan_of_worker_1(const std::vector<Finding>& findings, std::uint64_t first,
                            std::uint64_t last) {
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].check, "nonfinite-gradient");
  EXPECT_EQ(findings[0].severity, Severity::kCritical);
  EXPECT_EQ(findings[0].ranks, std::vector<std::uint32_t>{1});
  EXPECT_EQ(findings[0].first_step, first);
  EXPECT_EQ(findings[0].last_step, last);
}

std::vector<Finding> findings_in(const std::filesystem::path& run) {
  const auto log = RunLog::open(run);
  auto findings = log ? log->findings() : log.error();
  EXPECT_TRUE(findings) << findings.error().message;
  return findings.value_or(std::vector<Finding>());
}

// Rank 1 computes another loss, which is information until its gradient stands out.
TEST(MonitorFindings, AreNewAgainWhenTheyBecomeGraver) {
  FedAggregator aggregator;
  for (std::uint32_t r = 0; r < kWorkers; ++r) {
    packet::Hello hello = hello_of(r);
    hello.facts.facts = {{"loss.label_smoothing", r == 1 ? "0.5" : "0"}};
    aggregator.ingest(hello);
  }
  feed(aggregator, 0, 3);
  const auto severity = [&] {
    const auto findings = aggregator->take_new_findings();
    EXPECT_EQ(findings.size(), 1U);
    EXPECT_TRUE(findings.empty() || findings[0].check == "loss-mismatch");
    return findings.empty() ? Severity::kCritical : findings[0].severity;
  };
  EXPECT_EQ(severity(), Severity::kInfo);
  for (std::uint64_t s = 3; s < 40; ++s) {
    for (std::uint32_t r = 0; r < kWorkers; ++r) {
      packet::Step step = healthy(s, r);
      if (r == 1) step.total.sum_squares *= 100;
      aggregator.ingest(step);
    }
  }
  EXPECT_EQ(severity(), Severity::kWarning);
  EXPECT_TRUE(aggregator->take_new_findings().empty());
}

// Two groups of two ranks, whose samplers divide the data among all four.
TEST(MonitorFindings, OfGroupsKnowWhetherAModelIsReducedAmongAll) {
  const auto severity = [](bool dense) {
    FedAggregator aggregator;
    const auto of_group = [](std::uint32_t rank) {
      return Identity{.replica = rank % 2, .dp_group = rank / 2 * 2, .rank = rank, .replicas = 2};
    };
    for (std::uint32_t r = 0; r < kWorkers; ++r) {
      packet::Hello hello = hello_of(r);
      hello.facts.facts = {{"world_size", "4"}};
      if (dense) aggregator.ingest(hello);
      hello.header.identity = of_group(r);
      aggregator.ingest(hello);
    }
    for (std::uint32_t r = 0; r < kWorkers; ++r) {
      packet::Step step = healthy(0, r);
      step.header.identity = of_group(r);
      const auto kind = [](FingerprintKind of) { return static_cast<std::uint32_t>(of); };
      step.fingerprints = {{kind(FingerprintKind::kSamplerReplicas), 4},
                           {kind(FingerprintKind::kSamplerRank), r}};
      aggregator.ingest(step);
    }
    aggregator.close();
    const auto findings = findings_in(aggregator.run());
    EXPECT_EQ(findings.size(), 2U);
    return findings.empty() ? Severity::kCritical : findings[0].severity;
  };
  EXPECT_EQ(severity(true), Severity::kInfo);
  EXPECT_EQ(severity(false), Severity::kWarning);
}

TEST(MonitorFindings, AreNewOnceAndGrow) {
  FedAggregator aggregator;
  feed(aggregator, 0, 3);
  EXPECT_TRUE(aggregator->take_new_findings().empty());
  feed_nan(aggregator, 3);
  expect_nan_of_worker_1(aggregator->take_new_findings(), 3, 3);
  EXPECT_TRUE(aggregator->take_new_findings().empty()) << "told once";
  feed_nan(aggregator, 4);
  EXPECT_TRUE(aggregator->take_new_findings().empty()) << "it grew";
  expect_nan_of_worker_1(aggregator->findings(), 3, 4);
  aggregator.close();
  EXPECT_TRUE(aggregator->take_new_findings().empty());
  expect_nan_of_worker_1(findings_in(aggregator.run()), 3, 4);
  EXPECT_EQ(findings_in(aggregator.run())[0].model.segment, 1U);
}

TEST(MonitorFindings, WhosePacketsWereUnderWayAtTheEndIsNotMissing) {
  for (const std::uint64_t open : {5U, 6U}) {
    FedAggregator aggregator;
    feed(aggregator, 0, 10);
    for (std::uint64_t s = 10; s < 10 + open; ++s) {
      for (std::uint32_t r = 0; r < 3; ++r) aggregator.ingest(healthy(s, r));
    }
    aggregator.close();
    EXPECT_TRUE(findings_in(aggregator.run()).empty());
    EXPECT_EQ(aggregator->verdict() == Verdict::kConsistent, open == 5)
        << "more than a run leaves open";
  }
}

TEST(MonitorFindings, AStepThatNobodyWaitsForAnyMoreIsAWarning) {
  FedAggregator aggregator;
  feed(aggregator, 0, 10);
  for (std::uint64_t s = 10; s <= 74; ++s) {
    for (std::uint32_t r = 0; r < 3; ++r) aggregator.ingest(healthy(s, r));
  }
  aggregator.clock().advance(31);
  ASSERT_TRUE(aggregator->tick());
  aggregator.close();
  const auto findings = findings_in(aggregator.run());
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].severity, Severity::kWarning);
}

TEST(MonitorFindings, AreCommittedWithTheirSteps) {
  FedAggregator aggregator;
  feed(aggregator, 0, 3);
  for (std::uint32_t r = 0; r < 4; ++r)
    aggregator.ingest(r == 1 ? with_nan(healthy(3, r)) : healthy(3, r));
  aggregator.clock().advance(1.1);
  EXPECT_TRUE(read_steps(aggregator.run()).empty());
  for (std::uint32_t r = 0; r < 4; ++r) aggregator.ingest(healthy(4, r));
  EXPECT_GE(read_steps(aggregator.run()).size(), 4U);
  EXPECT_EQ(findings_in(aggregator.run()).size(), 1U);
}

TEST(MonitorFindings, AreNotThereBeforeTheirStepIsClosed) {
  FedAggregator aggregator;
  aggregator.ingest(with_nan(healthy(0, 1)));
  EXPECT_TRUE(aggregator->take_new_findings().empty());
  aggregator.close();
  EXPECT_FALSE(aggregator->take_new_findings().empty()) << "closing closes the step";
  EXPECT_FALSE(findings_in(aggregator.run()).empty());
}

TEST(MonitorFindings, NameTheHost) {
  FedAggregator aggregator;
  for (std::uint32_t r = 0; r < kWorkers; ++r) aggregator.ingest(hello_of(r));
  feed_nan(aggregator, 0);
  EXPECT_EQ(aggregator->findings().at(0).hosts, std::vector<std::string>{"node-1"});
}

TEST(MonitorFindings, AreInTheRunLogWhileItIsWritten) {
  FedAggregator aggregator;
  feed_nan(aggregator, 0);
  for (int second = 0; second < 2; ++second) {
    aggregator.clock().advance(1.01);
    ASSERT_TRUE(aggregator->tick());
  }
  expect_nan_of_worker_1(findings_in(aggregator.run()), 0, 0);
  const auto log = RunLog::open(aggregator.run());
  EXPECT_FALSE(log->checks()->empty());
  feed_nan(aggregator, 1);
  for (int second = 0; second < 2; ++second) {
    aggregator.clock().advance(1.01);
    ASSERT_TRUE(aggregator->tick());
  }
  expect_nan_of_worker_1(findings_in(aggregator.run()), 0, 1);
}

TEST(MonitorFindings, OfTwoModelsAreOneAndTheEarlierIsNamed) {
  FedAggregator aggregator;
  feed_nan(aggregator, 5, 0);
  feed_nan(aggregator, 2, 1);
  const auto fresh = aggregator->take_new_findings();
  ASSERT_EQ(fresh.size(), 1U);
  EXPECT_EQ(fresh[0].model.model_index, 1U);
  EXPECT_EQ(fresh[0].elsewhere, (std::vector<ModelKey>{{1, 0, 0}}));
  EXPECT_EQ(aggregator->findings().at(0).model.model_index, 1U);
  feed_nan(aggregator, 6, 0);
  EXPECT_TRUE(aggregator->take_new_findings().empty()) << "models do not disturb each other";
  aggregator.close();
  EXPECT_EQ(findings_in(aggregator.run()).size(), 2U);
}

TEST(MonitorFindings, ComeFromLastWordsToo) {
  FedAggregator aggregator;
  feed(aggregator, 0, 2);
  for (std::uint32_t r = 0; r < kWorkers; ++r) {
    auto note = goodbye(r, kWorkers);
    note.state.optimizer_steps = 2;
    note.state.states = {{7, StateHash::Kind::kParameters, r == 3 ? 99U : 1U}};
    aggregator.ingest(note);
  }
  const auto findings = aggregator->take_new_findings();
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].check, "parameter-desync");
  EXPECT_EQ(findings[0].ranks, std::vector<std::uint32_t>{3});
  aggregator.close();
  EXPECT_EQ(findings_in(aggregator.run()).size(), 1U);
}

TEST(MonitorFindings, AHealthyRunHasNoneAndIsConsistent) {
  FedAggregator aggregator;
  EXPECT_EQ(aggregator->verdict(), Verdict::kInsufficientEvidence);
  feed(aggregator, 0, 100);
  EXPECT_TRUE(aggregator->findings().empty());
  EXPECT_EQ(aggregator->verdict(), Verdict::kConsistent);
  feed_nan(aggregator, 100);
  EXPECT_EQ(aggregator->verdict(), Verdict::kInconsistent);
}

// ---- preflight

std::uint64_t preflight_code_in(const std::filesystem::path& run) {
  auto db = runlog::Database::open(run / "presum.db", runlog::Database::Mode::kRead);
  return db->query_integer("SELECT coalesce(preflight_exit_code, 99) FROM segment").value_or(98);
}

void expect_preflight(FedAggregator& aggregator, int code) {
  const auto ended = aggregator->end_preflight();
  ASSERT_TRUE(ended) << ended.error().message;
  EXPECT_EQ(*ended, code);
  aggregator.close();
  EXPECT_EQ(preflight_code_in(aggregator.run()), static_cast<std::uint64_t>(code));
}

TEST(MonitorPreflight, IsFineAfterHealthySteps) {
  FedAggregator aggregator;
  feed(aggregator, 0, 20);
  expect_preflight(aggregator, 0);
}

TEST(MonitorPreflight, JudgesStepsThatAreStillOpen) {
  FedAggregator aggregator;
  feed(aggregator, 0, 19);
  aggregator.ingest(with_nan(healthy(19, 1)));
  expect_preflight(aggregator, 1);
}

TEST(MonitorPreflight, CannotJudgeWithoutSteps) {
  FedAggregator aggregator;
  expect_preflight(aggregator, 2);
}

TEST(MonitorPreflight, CannotJudgeASingleWorker) {
  FedAggregator aggregator;
  for (std::uint64_t s = 0; s < 20; ++s) aggregator.ingest(step_of(s, 0, 1));
  expect_preflight(aggregator, 2);
}

// ---- state that outlives a process

// A recording of a training: where it starts, how far it gets and what it leaves. Parameters are
// one number; 0: not reported.
struct Training {
  std::uint64_t begins = 0;
  std::uint64_t steps = 0;
  std::uint64_t saved = 0;
  std::uint64_t saved_at = 0;  // next step
  std::uint64_t first = 0;     // hashed before the first step
  std::uint64_t last = 0;      // hashed after the last step
  std::uint32_t workers = kWorkers;
  bool closes = true;
};

packet::SnapshotOf snapshot_of(TrainingSnapshot::Kind kind, std::uint64_t step,
                               std::uint64_t parameters, std::uint32_t replica,
                               std::uint32_t workers) {
  packet::SnapshotOf out;
  out.header.identity = {.replica = replica, .rank = replica, .replicas = workers};
  out.snapshot = {.kind = kind, .step = step, .optimizer_steps = static_cast<double>(step)};
  if (replica == 0) {
    out.snapshot.groups = {{.id = 1, .elements = 4, .squares = 4, .parameters = parameters}};
  }
  return out;
}

std::vector<StateHash> hashed(std::uint64_t parameters) {
  if (parameters == 0) return {};
  return {{.group = 1, .kind = StateHash::Kind::kParameters, .value = parameters}};
}

std::uint64_t detector_steps(const std::filesystem::path& run) {
  auto db = runlog::Database::open(run / "presum.db", runlog::Database::Mode::kRead);
  auto row = db->prepare("SELECT state FROM detector_state");
  EXPECT_TRUE(*row->next());
  const auto bytes = row->blob(0);
  detect::Detector detector{detect::Options{}};
  EXPECT_TRUE(detector.restore({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
  return detector.steps();
}

// The notices for a training that is recorded into the folder.
std::vector<std::string> notices_of(const std::filesystem::path& run, const Training& training) {
  FedAggregator aggregator(run);
  auto out = aggregator->take_notices();
  EXPECT_LE(out.size(), 1U) << "it is not known yet";
  for (std::uint32_t r = 0; r < training.workers; ++r) {
    packet::Hello hello = hello_of(r);
    hello.header.identity.replicas = training.workers;
    aggregator.ingest(hello);
    if (training.begins == 0) continue;
    aggregator.ingest(
        snapshot_of(TrainingSnapshot::Kind::kBegun, 0, training.begins, r, training.workers));
  }
  for (std::uint64_t s = 0; s < training.steps; ++s) {
    for (std::uint32_t r = 0; r < training.workers; ++r) {
      auto step = healthy(s, r);
      step.header.identity.replicas = training.workers;
      if (s == 0) step.states = hashed(training.first);
      if (training.saved != 0 && s == training.saved_at) {
        aggregator.ingest(
            snapshot_of(TrainingSnapshot::Kind::kSaved, s, training.saved, r, training.workers));
      }
      aggregator.ingest(step);
    }
  }
  for (std::uint32_t r = 0; r < training.workers && training.closes; ++r) {
    packet::Note note = goodbye(r, training.workers);
    note.state.states = hashed(training.last);
    aggregator.ingest(note);
  }
  std::ranges::move(aggregator->take_notices(), std::back_inserter(out));
  EXPECT_TRUE(aggregator->take_notices().empty()) << "each is told once";
  if (training.closes) {
    aggregator.close();
  } else {
    aggregator.clock().advance(1.1);
    EXPECT_TRUE(aggregator->tick());
  }
  return out;
}

using Notices = std::vector<std::string>;
constexpr const char* kAfter30 = "continues a run of 30 steps as segment 2";

TEST(MonitorRestart, DetectorsGoOnFromParametersThatWereSaved) {
  const TempFolder folder;
  EXPECT_EQ(notices_of(folder / "run", {.begins = 1, .steps = 30, .saved = 2, .saved_at = 20}),
            Notices());
  EXPECT_EQ(notices_of(folder / "run", {.begins = 2, .steps = 10}),
            (Notices{kAfter30,
                     "segment 2 continues from step 20 of segment 1: detectors keep what they "
                     "learned in 20 steps"}));
  EXPECT_EQ(detector_steps(folder / "run"), 40U) << "also what was done again";
  EXPECT_EQ(notices_of(folder / "run", {.begins = 3}),
            Notices{"continues a run of 30 steps as segment 3"});
}

TEST(MonitorRestart, DetectorsAreSavedWithACheckpoint) {
  const TempFolder folder;
  notices_of(folder / "run",
             {.begins = 1, .steps = 30, .saved = 2, .saved_at = 20, .closes = false});
  EXPECT_EQ(detector_steps(folder / "run"), 30U);
  EXPECT_EQ(notices_of(folder / "run", {.begins = 2, .steps = 10}).back(),
            "segment 2 continues from step 20 of segment 1: detectors keep what they learned in 20 "
            "steps");
}

TEST(MonitorRestart, DetectorsBeginAnewWithOtherParameters) {
  const TempFolder folder;
  notices_of(folder / "run", {.begins = 1, .steps = 30, .saved = 2, .saved_at = 20});
  EXPECT_EQ(notices_of(folder / "run", {.begins = 1, .steps = 10}),
            (Notices{kAfter30,
                     "segment 2: detectors start over: its parameters match no checkpoint or "
                     "end that presum saw"}));
  EXPECT_EQ(detector_steps(folder / "run"), 10U);
  EXPECT_EQ(
      notices_of(folder / "run", {.begins = 2, .steps = 10}),
      (Notices{"continues a run of 40 steps as segment 3",
               "segment 3 continues from step 20 of segment 1: detectors start over, as those "
               "that were saved last are of another training"}));
  EXPECT_EQ(detector_steps(folder / "run"), 10U);
}

TEST(MonitorRestart, DetectorsBeginAnewWhereNothingIsKnownOfTheParameters) {
  const TempFolder folder;
  const Notices unknown = {kAfter30,
                           "segment 2: detectors start over: whether its parameters are any that "
                           "were left is not known"};
  notices_of(folder / "run", {.begins = 1, .steps = 30});
  EXPECT_EQ(notices_of(folder / "run", {.begins = 1, .steps = 10}), unknown);
  notices_of(folder / "other", {.steps = 30});
  EXPECT_EQ(notices_of(folder / "other", {.steps = 10}), unknown);
}

TEST(MonitorRestart, DetectorsGoOnFromParametersWithWhichASegmentEnded) {
  const TempFolder folder;
  notices_of(folder / "run", {.steps = 30, .last = 7});
  EXPECT_EQ(notices_of(folder / "run", {.steps = 10, .first = 7, .last = 8}),
            (Notices{kAfter30,
                     "segment 2 continues from step 30 of segment 1: detectors keep what they "
                     "learned in 30 steps"}));
  EXPECT_EQ(notices_of(folder / "run", {.steps = 10, .first = 7, .last = 9}).back(),
            "segment 3: detectors start over: its parameters match no checkpoint or "
            "end that presum saw");
  EXPECT_EQ(notices_of(folder / "run", {.steps = 10, .first = 9}),
            (Notices{"continues a run of 50 steps as segment 4",
                     "segment 4 continues from step 10 of segment 3: detectors keep what they "
                     "learned in 10 steps"}));
}

TEST(MonitorRestart, DetectorsOfOtherRanksBeginAnew) {
  const TempFolder folder;
  notices_of(folder / "run", {.begins = 1, .steps = 30, .saved = 2, .saved_at = 20});
  EXPECT_EQ(notices_of(folder / "run", {.begins = 2, .steps = 10, .workers = 3}).back(),
            "segment 2 continues from step 20 of segment 1: detectors start over, as there are 3 "
            "ranks instead of 4");
}

TEST(MonitorRestart, WhatDetectorsKnewIsKeptWhereNoStepCame) {
  const TempFolder folder;
  notices_of(folder / "run", {.begins = 1, .steps = 30, .saved = 2, .saved_at = 20});
  EXPECT_EQ(notices_of(folder / "run", {.begins = 3}), Notices{kAfter30});
  EXPECT_EQ(notices_of(folder / "run", {.begins = 2, .steps = 10}),
            (Notices{"continues a run of 30 steps as segment 3",
                     "segment 3 continues from step 20 of segment 1: detectors keep what they "
                     "learned in 20 steps"}));
}

TEST(MonitorRestart, ADamagedStateOfDetectorsIsNoError) {
  const TempFolder folder;
  notices_of(folder / "run", {.begins = 1, .steps = 30, .saved = 2, .saved_at = 20});
  {
    auto db = runlog::Database::open(folder / "run/presum.db", runlog::Database::Mode::kWrite);
    ASSERT_TRUE(db->execute("UPDATE detector_state SET state = x'00ff00ff00ff'"));
  }
  EXPECT_EQ(
      notices_of(folder / "run", {.begins = 2, .steps = 10}).back(),
      "segment 2 continues from step 20 of segment 1: detectors start over, as what was saved "
      "of them cannot be read");
}

TEST(MonitorRestart, StatisticsAreToldWhatDetectorsSaw) {
  const TempFolder folder;
  const auto too_short = [&](const Training& training) {
    notices_of(folder / "run", training);
    const auto log = RunLog::open(folder / "run");
    const auto judgment = judge::judge(*log, *log->steps());
    return judge::statistics_text(judgment->coverage);
  };
  EXPECT_EQ(too_short({.begins = 1, .steps = 10, .saved = 2, .saved_at = 8}),
            "statistics need 15 steps with 4 ranks, and saw 10");
  EXPECT_EQ(too_short({.begins = 2, .steps = 6}),
            "statistics need 15 steps with 4 ranks, and saw 14");
  EXPECT_EQ(
      too_short({.begins = 5, .steps = 6}),
      "statistics need 15 steps with 4 ranks, and saw 6 since they started over in segment 3");
}

TEST(MonitorRestart, FindingsOfASegmentStayWithIt) {
  const TempFolder folder;
  for (std::uint32_t segment = 1; segment <= 2; ++segment) {
    FedAggregator aggregator(folder / "run");
    for (std::uint32_t r = 0; r < kWorkers; ++r) {
      aggregator.ingest(segment == 1 && r == 1 ? with_nan(healthy(0, r)) : healthy(0, r));
    }
    EXPECT_EQ(aggregator->findings().size(), segment == 1 ? 1U : 0U);
    aggregator.close();
  }
  const auto findings = findings_in(folder / "run");
  expect_nan_of_worker_1(findings, 0, 0);
  EXPECT_EQ(findings[0].model.segment, 1U);
}

// ---- the project's salt

// The row hash 5 in the run log.
std::uint64_t sample_in(const std::filesystem::path& run) {
  FedAggregator aggregator(run);
  auto step = step_of(0, 0, 1);
  step.samples = {.rows = 1, .thinned = 0, .hashes = {5}};
  aggregator.ingest(step);
  aggregator.close();
  auto db = runlog::Database::open(run / "presum.db", runlog::Database::Mode::kRead);
  auto row = db->prepare("SELECT samples FROM worker_step");
  EXPECT_TRUE(*row->next());
  std::uint64_t sample = 0;
  EXPECT_EQ(row->blob(0).size(), sizeof sample);
  std::memcpy(&sample, row->blob(0).data(), sizeof sample);
  return sample;
}

TEST(MonitorSalt, ThatCannotBeReadIsReplacedByOneOfTheRun) {
  const TempFolder project;
  std::filesystem::create_directories(project / ".presum-salt");
  EXPECT_NE(sample_in(project / "a"), sample_in(project / "b"));
}

}  // namespace
}  // namespace presum
