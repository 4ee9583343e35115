// SPDX-License-Identifier: Apache-2.0
// That sentences claim no more than was compared.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "compare/compare.h"
#include "compare/testing.h"

namespace presum::compare {
namespace {

using testing::change_gradient;
using testing::change_layer;
using testing::compare_folders;
using testing::compare_steps;
using testing::record;
using testing::remove_worker;
using testing::RunOptions;
using testing::set;
using testing::step_of;
using testing::steps_hashed_in_slices;
using testing::steps_of;
using testing::steps_sharing_rows;
using testing::TempFolder;
using Change = std::function<void(WorkerRecord&)>;
using Step = std::optional<std::uint64_t>;

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

bool contains(const std::vector<std::string>& lines, const std::string& part) {
  return std::ranges::any_of(lines, [&](const std::string& line) { return has(line, part); });
}

std::string evidence_of(const Comparison& c, Stage stage) {
  std::string out;
  const auto& first = c.models[0].at(stage).first;
  if (!first) return out;
  for (const Evidence& e : first->evidence) out += e.text + "\n";
  return out;
}

// ---- other numbers of workers

// Run B has three workers, and one of them changes from step 1 on.
Comparison with_one_changed(std::size_t worker, const Change& change) {
  auto b = steps_sharing_rows(3);
  for (StepRecord& s : b) {
    if (s.step > 0) change(s.workers[worker]);
  }
  return compare_steps(steps_sharing_rows(2), b);
}

TEST(OtherWorlds, AreNotIdenticalIfAnyWorkerHasOtherParameters) {
  const auto c = with_one_changed(2, [](WorkerRecord& w) { w.states[0].value ^= 1; });
  EXPECT_EQ(c.outcome, Outcome::kDifferent);
  EXPECT_EQ(c.models[0].at(Stage::kParameters).differing, 5U);
  EXPECT_EQ(c.models[0].at(Stage::kFinal).differing, 1U);
  EXPECT_TRUE(has(evidence_of(c, Stage::kParameters), "rank 12 of B differs from the other"));
}

TEST(OtherWorlds, AreNotIdenticalIfAnyWorkerOfTheFirstRunHasOtherParameters) {
  auto a = steps_sharing_rows(2);
  for (StepRecord& s : a) s.workers[1].states[0].value ^= s.step > 0;
  const auto c = compare_steps(a, steps_sharing_rows(3));
  EXPECT_EQ(c.outcome, Outcome::kDifferent);
  EXPECT_TRUE(has(evidence_of(c, Stage::kParameters), "rank 11 of A differs from the other"));
}

TEST(OtherWorlds, AreNotIdenticalIfAnyWorkerHasAnotherReducedGradient) {
  const auto c = with_one_changed(2, [](WorkerRecord& w) { w.reduced_fingerprint ^= 1; });
  EXPECT_EQ(c.outcome, Outcome::kDifferent);
  EXPECT_GT(c.models[0].at(Stage::kReduction).differing, 0U);
}

TEST(OtherWorlds, AreNotIdenticalIfAnyWorkerHasOtherSettings) {
  const auto c =
      with_one_changed(2, [](WorkerRecord& w) { set(w, FingerprintKind::kLearningRate, 9.0); });
  EXPECT_EQ(c.outcome, Outcome::kDifferent);
  EXPECT_TRUE(c.models[0].at(Stage::kConfiguration).first.has_value());
}

TEST(OtherWorlds, SayThatPacketsOfAWorkerAreMissing) {
  auto b = steps_sharing_rows(3);
  remove_worker(b[3], 2);
  EXPECT_TRUE(contains(compare_steps(steps_sharing_rows(2), b).models[0].not_compared,
                       "workers whose packet is missing in a run, at 1 of 6 common steps"));
}

// The last of three workers says something else about itself.
void record_with_own_fact(const std::filesystem::path& folder, const std::string& key) {
  testing::FakeClock clock;
  auto writer = runlog::Writer::open(folder, clock.function(), runlog::Journal::kWal, 5);
  ASSERT_TRUE(writer);
  auto steps = steps_sharing_rows(3);
  for (const WorkerRecord& w : steps.front().workers) {
    packet::Hello hello;
    hello.header.segment = writer->segment();
    hello.header.identity = {.replica = w.replica, .rank = w.rank, .replicas = 3};
    hello.facts.facts = {{"every", "1"}, {key, w.replica == 2 ? "SGD" : "Adam"}};
    ASSERT_TRUE(writer->add(hello));
  }
  for (StepRecord& s : steps) {
    s.model.segment = writer->segment();
    ASSERT_TRUE(writer->add(s));
  }
  testing::add_notes(*writer, steps, {});
  ASSERT_TRUE(writer->close());
}

TEST(OtherWorlds, AreNotIdenticalIfAnyWorkerSaysSomethingElseOfItself) {
  for (const std::string key : {"optimizer", "cuda"}) {
    const TempFolder folder;
    record(folder / "a", steps_sharing_rows(2), {.facts = {{"every", "1"}, {key, "Adam"}}});
    record_with_own_fact(folder / "b", key);
    const auto c = compare_folders(folder / "a", folder / "b");
    ASSERT_EQ(c.facts.size(), 1U);
    EXPECT_EQ(c.facts[0].a, "Adam");
    EXPECT_EQ(c.facts[0].b, "Adam or SGD");
    EXPECT_EQ(c.outcome, key == "optimizer" ? Outcome::kDifferent : Outcome::kIdentical);
  }
}

// ---- parameters that are hashed in turn

void without_buffers(std::vector<StepRecord>& steps) {
  for (StepRecord& s : steps) {
    for (WorkerRecord& w : s.workers) {
      std::erase_if(w.states,
                    [](const StateHash& h) { return h.kind == StateHash::Kind::kBuffers; });
    }
  }
}

TEST(Slices, AreComparedThoughOneRunRecordedNoBuffers) {
  auto b = steps_hashed_in_slices(30);
  change_layer(b, "layers.2", 1);
  without_buffers(b);
  const auto c = compare_steps(steps_hashed_in_slices(30), b);
  EXPECT_EQ(c.outcome, Outcome::kDifferent);
  ASSERT_TRUE(c.models[0].at(Stage::kParameters).first.has_value());
  EXPECT_EQ(c.models[0].at(Stage::kParameters).first->step, 1U);
}

TEST(Slices, ThatWereNotKeptAreNotSeenEqual) {
  auto a = steps_hashed_in_slices(54);
  auto b = steps_hashed_in_slices(54);
  change_layer(b, "layers.10", 4);
  for (auto* steps : {&a, &b}) {
    for (WorkerRecord& w : (*steps)[27].workers) w.states.clear();
  }
  const auto first = compare_steps(a, b).models[0].at(Stage::kParameters).first;
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->step, 52U);
  EXPECT_EQ(first->last_seen, Step(2));
}

// ---- dates and causes

// The layer of slice 2 differs from step 4 on, which is seen at step 27.
std::vector<StepRecord> changed_late(std::uint64_t steps = 30) {
  auto out = steps_hashed_in_slices(steps);
  change_layer(out, "layers.10", 4);
  return out;
}

TEST(Dates, LeaveOutStepsAtWhichAWorkerIsMissing) {
  auto b = changed_late();
  for (StepRecord& s : b) {
    if (s.step >= 27) s.workers[1].loss += 1;
    if (s.step >= 5 && s.step < 27) remove_worker(s, 1);
  }
  const auto c = compare_steps(steps_hashed_in_slices(30), b);
  const ModelComparison& m = c.models[0];
  EXPECT_EQ(m.dated_after, Step(4));
  EXPECT_TRUE(has(m.dated, "dates it to the update of one of the steps 4 to 26")) << m.dated;
  EXPECT_EQ(m.cause, "");
  EXPECT_TRUE(has(m.origin, "the reduced gradient was not compared there")) << m.origin;
}

TEST(Causes, AreNotNamedWhereTheReducedGradientOfAWorkerWasNotSeen) {
  auto a = steps_hashed_in_slices(28);
  auto b = steps_hashed_in_slices(28);
  remove_worker(a[25], 2);
  for (StepRecord& s : b) {
    if (s.step < 26) continue;
    s.workers[2].loss += 1;
    for (StateHash& h : s.workers[2].states) h.value ^= 1;
  }
  const auto c = compare_steps(a, b);
  EXPECT_EQ(c.models[0].first, Stage::kParameters);
  EXPECT_EQ(c.models[0].cause, "");
}

TEST(Causes, AreNotNamedWhereGradientsWereLeftOut) {
  auto a = steps_hashed_in_slices(4);
  auto b = steps_hashed_in_slices(4);
  for (auto* steps : {&a, &b}) {
    for (StepRecord& s : *steps) {
      for (WorkerRecord& w : s.workers) w.skipped_parameters = 1;
    }
  }
  change_layer(b, "layers.2", 1);
  const ModelComparison m = compare_steps(a, b).models[0];
  EXPECT_EQ(m.cause, "");
  EXPECT_TRUE(has(m.origin, "the reduced gradient was not compared there")) << m.origin;
}

TEST(Causes, AreNotNamedForParametersThatWereNeverSeen) {
  auto a = steps_hashed_in_slices(30);
  auto b = steps_hashed_in_slices(30);
  change_layer(b, "layers.10", 0);
  for (StepRecord& s : b) {
    if (s.step >= 2) s.workers[0].loss += 1;
  }
  a.erase(a.begin());
  b.erase(b.begin());
  const ModelComparison m = compare_steps(a, b).models[0];
  EXPECT_EQ(m.first, Stage::kParameters);
  EXPECT_EQ(m.cause, "");
  EXPECT_EQ(m.dated_after, Step());
}

TEST(Dates, NameOnlyWhatWasCompared) {
  auto a = steps_hashed_in_slices(30);
  auto b = changed_late();
  for (auto* steps : {&a, &b}) {
    for (StepRecord& s : *steps) {
      for (WorkerRecord& w : s.workers) {
        w.skipped_parameters = 4;
        w.fingerprint = 0;
        w.grad_norm = NAN;
      }
    }
  }
  const auto unread = compare_steps(a, b).models[0];
  EXPECT_TRUE(unread.dated.starts_with("losses are equal up to step 29")) << unread.dated;
  for (StepRecord& s : b) {
    if (s.step >= 27) s.workers[0].loss += 1;
  }
  const auto dated = compare_steps(a, b).models[0];
  EXPECT_EQ(dated.computed, "losses");
  EXPECT_TRUE(dated.dated.starts_with("losses are equal up to step 26 and differ at step 27"));
}

TEST(Dates, SayThatWhatIsComputedDiffersLater) {
  auto b = changed_late(31);
  for (StepRecord& s : b) {
    if (s.step >= 29) s.workers[0].loss += 1;
  }
  const ModelComparison m = compare_steps(steps_hashed_in_slices(31), b).models[0];
  EXPECT_EQ(m.dated,
            "losses and gradients are equal up to step 28 all the same: they differ from step 29 "
            "on, too late to date it");
}

TEST(Brackets, RunForwardAfterTheLastRecordedStep) {
  const auto steps = steps_hashed_in_slices(27);  // slice 1, layers.2, is hashed at the last one
  auto end = steps.back();
  for (WorkerRecord& w : end.workers) w.states = step_of(0, 1).workers.front().states;
  std::vector<StepRecord> other = {end};
  change_layer(other, "layers.2", 0);
  const TempFolder folder;
  const RunOptions options{.final_states = false, .unrecorded = 2};
  record(folder / "a", steps, options, &end);
  record(folder / "b", steps, options, &other.front());
  const auto c = compare_folders(folder / "a", folder / "b");
  EXPECT_EQ(c.models[0].first, Stage::kFinal);
  EXPECT_TRUE(has(c.models[0].bracket, "one of the last 3 updates, those of the steps 26 to 28"))
      << c.models[0].bracket;
}

// Steps of a later segment, numbered anew.
std::vector<StepRecord> tail(std::uint64_t from, std::uint64_t to) {
  std::vector<StepRecord> out;
  for (std::uint64_t step = from; step < to; ++step) {
    StepRecord s = step_of(step, 3);
    s.step = step - from;
    for (WorkerRecord& w : s.workers) w.optimizer_step = s.step + 1;
    out.push_back(s);
  }
  return out;
}

const RunOptions kMomentum{.facts = {{"optimizer.momentum", "0.9"}, {"every", "1"}},
                           .final_states = false};
const RunOptions kNoMomentum{.facts = {{"optimizer.momentum", "0"}, {"every", "1"}},
                             .final_states = false};

TEST(Causes, AreNotFactsOfALaterSegment) {
  auto b = steps_hashed_in_slices(10);
  change_layer(b, "layers.2", 1);
  const TempFolder folder;
  record(folder / "a", steps_hashed_in_slices(10), kMomentum);
  record(folder / "b", b, kMomentum);
  record(folder / "a", tail(9, 14), kMomentum);
  record(folder / "b", tail(9, 14), kNoMomentum);
  const auto c = compare_folders(folder / "a", folder / "b");
  EXPECT_EQ(c.models[0].first, Stage::kParameters);
  EXPECT_FALSE(has(c.models[0].cause, "momentum")) << c.models[0].cause;
  ASSERT_EQ(c.facts.size(), 1U);
  EXPECT_EQ(c.facts[0].since, 9U);
}

TEST(Causes, ComeFromFactsThatWerePassedOverAtFirst) {
  auto without = [](std::vector<StepRecord> steps) {
    for (StepRecord& s : steps) {
      for (WorkerRecord& w : s.workers) {
        std::erase_if(w.fingerprints, [](const FingerprintValue& f) {
          return f.kind == static_cast<std::uint32_t>(FingerprintKind::kOptimizerSettings);
        });
      }
    }
    return steps;
  };
  const TempFolder folder;
  record(folder / "a", without(tail(0, 10)), kMomentum);
  record(folder / "a", without(tail(9, 14)), kMomentum);
  record(folder / "b", without(tail(0, 5)), kMomentum);
  record(folder / "b", without(tail(4, 10)), kNoMomentum);
  record(folder / "b", without(tail(9, 14)), kNoMomentum);
  const auto c = compare_folders(folder / "a", folder / "b");
  const auto& first = c.models[0].at(Stage::kConfiguration).first;
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->what, "optimizer.momentum");
  EXPECT_EQ(first->step, 9U);
}

// ---- other stages than parameters

TEST(Brackets, OfAReductionBeginWhereItWasLastRead) {
  auto a = steps_of(30);
  auto b = steps_of(30);
  for (auto* steps : {&a, &b}) {
    for (StepRecord& s : *steps) {
      for (WorkerRecord& w : s.workers) {
        if (s.step % 25 == 0) continue;
        w.reduced_norm = NAN;
        w.reduced_fingerprint = 0;
      }
    }
  }
  for (WorkerRecord& w : b[25].workers) w.reduced_fingerprint ^= 1;
  const ModelComparison m = compare_steps(a, b).models[0];
  EXPECT_EQ(m.first, Stage::kReduction);
  EXPECT_EQ(m.last_identical, Step(0));
  EXPECT_EQ(m.bracket, "it began at one of the steps 1 to 25");
}

TEST(Brackets, OfAGradientBeginWhereItsWorkerWasLastCompared) {
  auto b = steps_of(10);
  for (StepRecord& s : b) {
    if (s.step >= 7) change_gradient(s, 2, {"head"});
    if (s.step >= 2 && s.step < 7) remove_worker(s, 2);
  }
  const ModelComparison m = compare_steps(steps_of(10), b).models[0];
  EXPECT_EQ(m.first, Stage::kGradient);
  EXPECT_EQ(m.last_identical, Step(1));
  EXPECT_EQ(m.bracket, "it began at one of the steps 2 to 7");
}

TEST(Brackets, OfALossThatWasNeverComparedSaySo) {
  auto a = steps_of(6);
  auto b = steps_of(6);
  for (auto* steps : {&a, &b}) {
    for (StepRecord& s : *steps) {
      if (s.step < 4) s.workers[1].loss = NAN;
    }
  }
  b[4].workers[1].loss += 1;
  const ModelComparison m = compare_steps(a, b).models[0];
  EXPECT_EQ(m.first, Stage::kLoss);
  EXPECT_EQ(m.last_identical, Step());
  EXPECT_EQ(m.bracket, "these were not compared before");
}

// ---- sentences of success

void without_reductions(std::vector<StepRecord>& steps) {
  for (StepRecord& s : steps) {
    for (WorkerRecord& w : s.workers) {
      w.reduced_norm = NAN;
      w.reduced_fingerprint = 0;
    }
  }
}

TEST(Agreement, OfOtherWorldsNeedsMoreThanOneSliceAfterTheStart) {
  auto a = steps_sharing_rows(2, 2);
  auto b = steps_sharing_rows(3, 2);
  for (auto* steps : {&a, &b}) {
    without_reductions(*steps);
    for (WorkerRecord& w : (*steps)[1].workers) w.states = {w.states.back()};
  }
  const RunOptions open{.final_states = false};
  EXPECT_EQ(compare_steps(a, b, open, open).outcome, Outcome::kDifferent);
  EXPECT_EQ(compare_steps(a, b).outcome, Outcome::kIdentical) << "final parameters suffice";
}

TEST(Agreement, OfOtherWorldsComesFromEverySliceOrASum) {
  const RunOptions open{.final_states = false};
  auto a = steps_sharing_rows(2, 26);
  auto b = steps_sharing_rows(3, 26);
  without_reductions(a);
  without_reductions(b);
  EXPECT_EQ(compare_steps(a, b, open, open).outcome, Outcome::kIdentical);
  a.resize(25);
  EXPECT_EQ(compare_steps(a, b, open, open).outcome, Outcome::kDifferent) << "slice 0 is not seen";
  EXPECT_EQ(compare_steps(steps_sharing_rows(2), steps_sharing_rows(3), open, open).outcome,
            Outcome::kIdentical)
      << "the sum of step 5";
}

TEST(Agreement, TellsNumbersOfWorkersThatChangeWithinARun) {
  const TempFolder folder;
  const auto facts = [](const char* workers) {
    return RunOptions{.facts = {{"world_size", workers}, {"every", "1"}}, .final_states = false};
  };
  auto second = steps_sharing_rows(2, 28);
  second.erase(second.begin(), second.begin() + 25);
  for (StepRecord& s : second) {
    s.step -= 25;
    for (WorkerRecord& w : s.workers) w.optimizer_step -= 25;
  }
  record(folder / "a", steps_sharing_rows(2, 28), facts("2"));
  record(folder / "b", steps_sharing_rows(3, 25), facts("3"));
  record(folder / "b", second, facts("2"));
  const auto c = compare_folders(folder / "a", folder / "b");
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
  EXPECT_TRUE(c.agreement.starts_with(
      "identical for 2 and 3 workers (at 25 of the steps, equal numbers at the others), bit for "
      "bit, at 28 common steps: samples, random generators at 3 steps, "))
      << c.agreement;
  EXPECT_TRUE(contains(c.models[0].not_compared,
                       "loss at 25 of 28 common steps: the numbers of workers differ"));
}

TEST(Agreement, SaysWhichStepsAreCommonThoughTheirCountsAreEqual) {
  auto a = steps_of(8);
  auto b = steps_of(8);
  a.resize(5);
  b.erase(b.begin(), b.begin() + 3);
  EXPECT_TRUE(has(compare_steps(a, b).agreement, "at 2 common steps (A holds 5, B 5)"));
}

void record_two_models(const std::filesystem::path& folder, std::uint64_t begin) {
  testing::FakeClock clock;
  auto writer = runlog::Writer::open(folder, clock.function(), runlog::Journal::kWal, 5);
  ASSERT_TRUE(writer);
  for (std::uint64_t step = 0; step < 3; ++step) {
    for (const std::uint32_t module : {0U, 1U}) {
      StepRecord s = step_of(module == 0 ? step + begin : step, 3);
      s.model.segment = writer->segment();
      s.model.module = module;
      ASSERT_TRUE(writer->add(s));
    }
  }
  ASSERT_TRUE(writer->close());
}

TEST(Agreement, SpeaksOfEveryModel) {
  const TempFolder folder;
  for (const auto& [name, begin] : {std::pair("a", 0U), std::pair("b", 3U), std::pair("c", 0U)}) {
    record_two_models(folder / name, begin);
  }
  const auto c = compare_folders(folder / "a", folder / "b");
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
  EXPECT_TRUE(has(c.agreement, "module 0, shard 0: nothing was compared")) << c.agreement;
  EXPECT_TRUE(has(c.agreement, "module 1, shard 0: identical in all that was compared, at 3"));
  EXPECT_TRUE(compare_folders(folder / "a", folder / "c")
                  .agreement.starts_with("2 models, each identical in all that was compared"));
}

TEST(Damage, IsAStepWithoutANumberOfWorkers) {
  for (const std::uint32_t workers : {0U, ~0U}) {
    auto steps = steps_of(2);
    steps[1].workers_expected = workers;
    const TempFolder folder;
    record(folder / "a", steps_of(2));
    record(folder / "b", steps);
    const auto a = RunLog::open(folder / "a");
    const auto b = RunLog::open(folder / "b");
    ASSERT_TRUE(a && b);
    const auto c = compare(*a, *b);
    ASSERT_FALSE(c);
    EXPECT_EQ(c.error().code, ErrorCode::kCorrupt);
    EXPECT_TRUE(has(c.error().message, "presum.db is damaged: copy it again")) << c.error().message;
  }
}

TEST(OptimizerSteps, AreCountedWithoutOverflow) {
  auto a = steps_of(3);
  auto b = steps_of(3);
  for (StepRecord& s : a) s.workers[0].optimizer_step = std::uint64_t{1} << 63;
  for (StepRecord& s : b) s.workers[0].optimizer_step = ~std::uint64_t{0};
  const auto c = compare_steps(a, b);
  EXPECT_FALSE(contains(c.models[0].remarks, "fewer optimiser steps"));
}

// ---- facts

TEST(Facts, OfVersionsAreNoNumbers) {
  const auto c = compare_steps(steps_of(2), steps_of(2), {.facts = {{"cuda", "12.1"}}},
                               {.facts = {{"cuda", "12.10"}}});
  EXPECT_EQ(c.facts.size(), 1U);
}

}  // namespace
}  // namespace presum::compare
