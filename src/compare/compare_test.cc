// SPDX-License-Identifier: Apache-2.0
#include "compare/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>

#include "compare/document.h"
#include "compare/testing.h"
#include "presum/audit.h"
#include "runlog/sqlite.h"

namespace presum::compare {
namespace {

using testing::change_gradient;
using testing::change_layer;
using testing::compare_steps;
using testing::group_of;
using testing::RunOptions;
using testing::set;
using testing::step_of;
using testing::steps_hashed_in_slices;
using testing::steps_of;
using testing::steps_sharing_rows;
using Kind = FingerprintKind;
using Ranks = std::vector<std::uint32_t>;
using Names = std::vector<std::string>;
using Change = std::function<void(StepRecord&)>;

constexpr std::uint64_t kSteps = 12;

// Run B is run A with a change from a step on, or at one step alone.
Comparison changed_from(std::uint64_t step, const Change& change) {
  auto b = steps_of(kSteps);
  for (StepRecord& s : b) {
    if (s.step >= step) change(s);
  }
  return compare_steps(steps_of(kSteps), b);
}

Comparison changed_at(std::uint64_t step, const Change& change) {
  auto b = steps_of(kSteps);
  change(b[step]);
  return compare_steps(steps_of(kSteps), b);
}

const Difference& first(const Comparison& c) {
  static const Difference none;
  const ModelComparison* m = c.first();
  return m == nullptr ? none : *m->at(*m->first).first;
}

void expect_first(const Comparison& c, Stage stage, std::uint64_t step, const Ranks& ranks) {
  EXPECT_EQ(c.outcome, Outcome::kDifferent);
  ASSERT_NE(c.first(), nullptr);
  EXPECT_EQ(to_string(*c.first()->first), to_string(stage));
  EXPECT_EQ(first(c).step, step);
  EXPECT_EQ(first(c).ranks, ranks);
  EXPECT_FALSE(c.first()->origin.empty());
}

bool contains(const std::vector<std::string>& lines, const std::string& part) {
  return std::ranges::any_of(
      lines, [&](const std::string& line) { return line.find(part) != std::string::npos; });
}

Names texts(const Difference& d) {
  Names out;
  for (const Evidence& e : d.evidence) out.push_back(e.text);
  return out;
}

// ---- equal runs

TEST(Compare, FindsEqualRunsIdenticalAtEveryStage) {
  const auto c = compare_steps(steps_of(kSteps), steps_of(kSteps));
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
  EXPECT_EQ(c.first(), nullptr);
  ASSERT_EQ(c.models.size(), 1U);
  const ModelComparison& m = c.models[0];
  EXPECT_EQ(m.common_steps, kSteps);
  for (const Stage s : {Stage::kConfiguration, Stage::kData, Stage::kRandom, Stage::kParameters,
                        Stage::kLoss, Stage::kGradient}) {
    EXPECT_EQ(m.at(s).compared, kSteps) << to_string(s);
    EXPECT_EQ(m.at(s).differing, 0U) << to_string(s);
  }
  EXPECT_EQ(m.at(Stage::kReduction).compared, 3U);
  EXPECT_EQ(m.at(Stage::kFinal).compared, 1U);
  EXPECT_TRUE(m.origin.empty());
  EXPECT_EQ(m.not_compared, Names{"reduction at 9 of 12 common steps: not recorded in either run"});
}

TEST(Compare, TakesTwoNanForEqual) {
  auto steps = steps_of(3);
  steps[1].workers[0].loss = NAN;
  steps[1].workers[0].loss_nonfinite = true;
  steps[1].workers[0].micro = {};
  steps[1].workers[0].grad_norm = NAN;
  EXPECT_EQ(compare_steps(steps, steps).outcome, Outcome::kIdentical);
}

TEST(Compare, WorksWithOneWorkerAndOneStep) {
  EXPECT_EQ(compare_steps(steps_of(1, 1), steps_of(1, 1)).outcome, Outcome::kIdentical);
}

// ---- every stage

TEST(Compare, FindsASettingThatChangesMidRun) {
  const auto c = changed_from(6, [](StepRecord& s) {
    for (WorkerRecord& w : s.workers) {
      set(w, Kind::kLearningRate, 0.05);
      set(w, Kind::kOptimizerSettings, std::uint64_t{43});
    }
  });
  expect_first(c, Stage::kConfiguration, 6, {10, 11, 12});
  EXPECT_TRUE(first(c).all_ranks);
  EXPECT_EQ(first(c).what, "optimizer_settings, learning_rate");
  EXPECT_TRUE(contains(texts(first(c)), "learning_rate: 0.1 in A, 0.05 in B"));
  EXPECT_EQ(c.first()->last_identical, 5U);
  EXPECT_EQ(c.first()->at(Stage::kConfiguration).differing, 6U);
  EXPECT_EQ(c.first()->first_number, std::nullopt);
}

TEST(Compare, FindsAnotherNumberOfMicroBatches) {
  const auto c = changed_from(0, [](StepRecord& s) { s.workers[2].micro_batches = 4; });
  expect_first(c, Stage::kConfiguration, 0, {12});
  EXPECT_TRUE(contains(texts(first(c)), "micro_batches: 2 in A, 4 in B"));
}

TEST(Compare, LeavesOutWhereADataSetLiesAndHowFarItsReaderIs) {
  const auto c = changed_from(0, [](StepRecord& s) {
    for (WorkerRecord& w : s.workers) {
      set(w, Kind::kDataAttributes, std::uint64_t{9});
      set(w, Kind::kDataBatch, s.step + 100);
    }
  });
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
}

TEST(Compare, FindsOneSampleWithItsMicroBatchAndItsPositions) {
  const auto c = changed_at(4, [](StepRecord& s) {
    s.workers[1].samples.hashes[3] = 99;
    s.workers[1].indices[3] = 7;
    set(s.workers[1], Kind::kBatch, std::uint64_t{98});
  });
  expect_first(c, Stage::kData, 4, {11});
  EXPECT_EQ(first(c).what, "samples (1 of 12 over all workers)");
  EXPECT_EQ(texts(first(c)),
            Names{"1 of 4 rows differs (micro-batch 2 of 2); row 3 is sample 413 of the data set "
                  "in A, 7 in B"});
}

TEST(Compare, TellsRowsInAnotherOrderFromOtherRows) {
  const auto c =
      changed_at(4, [](StepRecord& s) { std::ranges::reverse(s.workers[1].samples.hashes); });
  expect_first(c, Stage::kData, 4, {11});
  EXPECT_TRUE(contains(texts(first(c)), "the same rows in another order"));
}

TEST(Compare, TellsAnotherShardingFromOtherSamples) {
  const auto c = changed_from(2, [](StepRecord& s) {
    std::swap(s.workers[0].samples.hashes, s.workers[2].samples.hashes);
    std::swap(s.workers[0].indices, s.workers[2].indices);
  });
  expect_first(c, Stage::kData, 2, {10, 12});
  EXPECT_EQ(first(c).what, "the same samples over all workers, dealt to them in another way");
}

TEST(Compare, FindsLabelsBehindEqualRows) {
  const auto c =
      changed_at(4, [](StepRecord& s) { set(s.workers[0], Kind::kBatch, std::uint64_t{1}); });
  expect_first(c, Stage::kData, 4, {10});
  EXPECT_TRUE(contains(texts(first(c)), "labels"));
}

TEST(Compare, ComparesThinnedRowsByTheWholeBatch) {
  const auto thin = [](StepRecord& s) {
    s.workers[0].samples.thinned = 1;
    s.workers[0].samples.hashes.pop_back();
  };
  EXPECT_EQ(changed_at(4, thin).outcome, Outcome::kIdentical);
  const auto c = changed_at(4, [&](StepRecord& s) {
    thin(s);
    set(s.workers[0], Kind::kBatch, std::uint64_t{1});
  });
  expect_first(c, Stage::kData, 4, {10});
}

TEST(Compare, DoesNotCompareSamplesOfAnotherSaltButTheirPositions) {
  const RunOptions other{.salt = 6};
  const auto equal = compare_steps(steps_of(4), steps_of(4), {}, other);
  EXPECT_EQ(equal.outcome, Outcome::kIdentical);
  auto b = steps_of(4);
  for (StepRecord& s : b) {
    for (WorkerRecord& w : s.workers) w.indices.clear();
  }
  const auto unknown = compare_steps(steps_of(4), b, {}, other);
  EXPECT_EQ(unknown.outcome, Outcome::kIdentical);
  EXPECT_TRUE(contains(unknown.models[0].not_compared, "salts differ"));
  b = steps_of(4);
  b[2].workers[1].indices[0] = 5;
  expect_first(compare_steps(steps_of(4), b, {}, other), Stage::kData, 2, {11});
}

TEST(Compare, SaysThatSamplesOfAnotherSaltMayBeTheCause) {
  auto b = steps_of(4);
  b[2].workers[1].loss += 1;
  const auto c = compare_steps(steps_of(4), b, {}, {.salt = 6});
  expect_first(c, Stage::kLoss, 2, {11});
  EXPECT_TRUE(contains(c.models[0].not_compared, "content of samples at 4 of 4 common steps"));
  EXPECT_TRUE(c.first()->origin.starts_with("the samples, whose content was not compared, or the"));
  const auto same_salt = compare_steps(steps_of(4), b);
  EXPECT_FALSE(contains(same_salt.models[0].not_compared, "content of samples"));
  EXPECT_TRUE(same_salt.first()->origin.starts_with("the forward pass"));
}

TEST(Compare, SaysThatSamplesThatWereNotRecordedMayBeTheCause) {
  auto a = steps_of(4);
  for (StepRecord& s : a) {
    for (WorkerRecord& w : s.workers) {
      w.samples.rows = 0;
      w.samples.hashes.clear();
      w.indices.clear();
    }
  }
  auto b = a;
  b[2].workers[1].loss += 1;
  const auto c = compare_steps(a, b);
  expect_first(c, Stage::kLoss, 2, {11});
  EXPECT_TRUE(c.first()->origin.starts_with("the samples, whose content was not compared, or the"));
}

TEST(Compare, FindsAGeneratorThatDrewOnceMore) {
  const auto c = changed_from(4, [](StepRecord& s) {
    set(s.workers[2], Kind::kRngTorch, s.step + 1);
    s.workers[2].loss += 1;
  });
  expect_first(c, Stage::kRandom, 4, {12});
  EXPECT_EQ(first(c).what, "rng_torch");
  EXPECT_EQ(c.first()->first_number, Stage::kLoss);
}

TEST(Compare, DoesNotCallRunsDifferentForGeneratorsAlone) {
  const auto c =
      changed_from(4, [](StepRecord& s) { set(s.workers[2], Kind::kRngTorch, s.step + 1); });
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
  EXPECT_TRUE(contains(c.models[0].remarks, "rng_torch differ from step 4 on"));
}

TEST(Compare, LooksPastGeneratorsThatWereNeverSeeded) {
  const auto c = changed_from(0, [](StepRecord& s) {
    set(s.workers[0], Kind::kRngNumpy, s.step + 1);
    if (s.step < 7) return;
    set(s.workers[1], Kind::kRngTorch, s.step + 1);
    s.workers[1].loss += 1;
  });
  expect_first(c, Stage::kRandom, 7, {11});
  EXPECT_TRUE(contains(c.models[0].remarks, "rng_numpy differ from the first common step on"));
}

TEST(Compare, LooksPastGeneratorsUnderWhichAStepCameOutEqual) {
  const auto c = changed_from(3, [](StepRecord& s) {
    set(s.workers[0], Kind::kRngTorch, s.step + 1);
    if (s.step == 7) change_gradient(s, 1, {"head"});
  });
  expect_first(c, Stage::kGradient, 7, {11});
  EXPECT_EQ(c.first()->last_identical, 6U);
  EXPECT_TRUE(
      contains(c.models[0].remarks, "rng_torch differ from step 3 on, but step 3 came out equal"));
}

TEST(Compare, FindsALayerThatBeganOtherwise) {
  const auto c = changed_from(0, [](StepRecord& s) {
    for (WorkerRecord& w : s.workers) w.states[1].value ^= 1;
  });
  expect_first(c, Stage::kParameters, 0, {10, 11, 12});
  EXPECT_EQ(first(c).layers, Names{"layers.2"});
  EXPECT_NE(c.first()->origin.find("other weights"), std::string::npos);
}

TEST(Compare, FindsABufferOfOneWorker) {
  const auto c = changed_at(3, [](StepRecord& s) { s.workers[2].states[4].value ^= 1; });
  expect_first(c, Stage::kParameters, 3, {12});
  EXPECT_NE(first(c).what.find("buffers"), std::string::npos);
}

void change_states(StepRecord& step, std::size_t layer) {
  for (WorkerRecord& w : step.workers) w.states[layer].value ^= 1;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Compare, BlamesTheUpdateWhereTheReducedGradientWasEqual) {
  const auto change = [](StepRecord& s) { change_states(s, 0); };
  const auto after_reduced = changed_from(1, change);
  expect_first(after_reduced, Stage::kParameters, 1, {10, 11, 12});
  EXPECT_TRUE(has(after_reduced.first()->origin, "the reduced gradient was equal"));
  EXPECT_TRUE(after_reduced.first()->cause.starts_with("the update of step 0 itself differs"));
  const auto after_unread = changed_from(7, change);
  EXPECT_TRUE(has(after_unread.first()->origin, "was not compared there"));
  EXPECT_TRUE(after_unread.first()->cause.starts_with("the reduction or the update of one of the"));
}

// ---- parameters, which are hashed in turn

// The layer of slice 2 differs from step 4 on, and is next hashed at step 27.
Comparison changed_late(const Change& also = [](StepRecord&) {}) {
  auto b = steps_hashed_in_slices(30);
  change_layer(b, "layers.10", 4);
  for (StepRecord& s : b) also(s);
  return compare_steps(steps_hashed_in_slices(30), b);
}

TEST(Compare, BracketsAParameterByWhenItWasLastSeenEqual) {
  const auto c = changed_late();
  expect_first(c, Stage::kParameters, 27, {10, 11, 12});
  const ModelComparison& m = *c.first();
  EXPECT_EQ(first(c).last_seen, 2U);
  EXPECT_EQ(m.last_identical, 2U);
  EXPECT_TRUE(m.bracket.starts_with("they differ since one of the steps 3 to 27")) << m.bracket;
  EXPECT_TRUE(has(m.bracket, "last seen equal at step 2"));
  EXPECT_EQ(m.dated_after, std::nullopt);
  EXPECT_TRUE(has(m.dated, "equal up to step 29 all the same")) << m.dated;
  EXPECT_TRUE(m.cause.starts_with("the update of one of the steps 2 to 26 itself differs"));
  EXPECT_TRUE(has(m.origin, "one of the steps 2 to 26"));
}

TEST(Compare, DatesAParameterByLossesThatDifferWithIt) {
  const auto c = changed_late([](StepRecord& s) {
    if (s.step >= 27) s.workers[0].loss += 1;
  });
  expect_first(c, Stage::kParameters, 27, {10, 11, 12});
  const ModelComparison& m = *c.first();
  EXPECT_EQ(m.last_identical, 2U);
  EXPECT_EQ(m.dated_after, 26U);
  EXPECT_TRUE(has(m.dated, "equal up to step 26 and differ at step 27")) << m.dated;
  EXPECT_TRUE(has(m.cause, "by losses and gradients, the update of step 26 itself differs"));
}

TEST(Compare, PutsALossThatDiffersFirstBeforeAParameterThatIsSeenLater) {
  const auto c = changed_late([](StepRecord& s) {
    for (WorkerRecord& w : s.workers) w.loss += s.step >= 5 ? 1 : 0;
  });
  expect_first(c, Stage::kLoss, 5, {10, 11, 12});
  EXPECT_EQ(c.first()->at(Stage::kParameters).first->last_seen, 2U);
  EXPECT_TRUE(c.first()->bracket.empty());
  EXPECT_TRUE(has(c.first()->origin, "or the same of an earlier step")) << c.first()->origin;
}

TEST(Compare, BracketsParametersAfterTheLastStep) {
  const testing::TempFolder folder;
  const auto write = [&](const char* name, bool other) {
    auto steps = steps_hashed_in_slices(28);
    for (WorkerRecord& w : steps.back().workers) w.states = steps.front().workers.front().states;
    if (other) change_layer(steps, "head", 27);
    testing::RunOptions options{.final_states = false};
    auto notes = steps;
    steps.back() = steps_hashed_in_slices(28).back();
    testing::record(folder / name, steps, options, &notes.back());
  };
  write("a", false);
  write("b", true);
  const auto c = testing::compare_folders(folder / "a", folder / "b");
  expect_first(c, Stage::kFinal, 27, {10, 11, 12});
  EXPECT_EQ(first(c).last_seen, 3U);
  EXPECT_TRUE(has(c.first()->bracket, "one of the steps 4 to 27, or after it"));
  EXPECT_TRUE(has(c.first()->dated, "or nothing that was computed shows it"));
  EXPECT_TRUE(has(c.first()->cause, "the update of one of the steps 3 to 27 itself differs"));
}

TEST(Compare, SaysThatUpdatesAfterTheLastRecordedStepMayBeTheCause) {
  const auto a = steps_of(6);
  auto b = a;
  for (WorkerRecord& w : b.back().workers) w.states[0].value ^= 1;
  const testing::TempFolder folder;
  testing::record(folder / "a", a, {.final_states = false, .unrecorded = 2}, &a.back());
  testing::record(folder / "b", a, {.final_states = false, .unrecorded = 2}, &b.back());
  const auto c = testing::compare_folders(folder / "a", folder / "b");
  expect_first(c, Stage::kFinal, 5, {10, 11, 12});
  EXPECT_TRUE(has(c.first()->origin, "update of one of the steps 0 to 7")) << c.first()->origin;
  EXPECT_TRUE(c.first()->cause.empty()) << "their gradients were not seen";
}

TEST(Compare, DatesNoMorePreciselyThanStepsAreRecorded) {
  const auto sparse = [](bool other) {
    std::vector<StepRecord> out;
    for (StepRecord& s : steps_hashed_in_slices(10)) {
      if (s.step % 3 != 0) continue;
      for (WorkerRecord& w : s.workers) {
        w.states = step_of(s.step, 1).workers.front().states;
        if (other && s.step >= 9) w.loss += 1;
      }
      out.push_back(s);
    }
    if (other) change_layer(out, "layers.10", 9);
    return out;
  };
  const RunOptions every{.facts = {{"every", "3"}}};
  const auto c = compare_steps(sparse(false), sparse(true), every, every);
  expect_first(c, Stage::kParameters, 9, {10, 11, 12});
  EXPECT_EQ(c.first()->dated_after, 6U);
  EXPECT_TRUE(has(c.first()->dated, "dates it to the update of one of the steps 6 to 8"));
  EXPECT_TRUE(has(c.first()->origin, "one of the steps 6 to 8"));
}

TEST(Compare, SaysThatARunWasNotClosed) {
  const testing::TempFolder folder;
  testing::record(folder / "a", steps_of(5));
  testing::record(folder / "b", steps_of(3), {.final_states = false, .closed = false});
  const auto c = testing::compare_folders(folder / "a", folder / "b");
  EXPECT_EQ(c.agreement,
            "identical in all that was compared, at 3 common steps (A holds 5, B 3); not compared: "
            "final parameters");
  EXPECT_TRUE(contains(c.models[0].remarks, "B was not closed"));
}

TEST(Compare, SaysWhereARecordIsIncomplete) {
  const testing::TempFolder folder;
  testing::record(folder / "a", steps_of(5));
  testing::record(folder / "b", steps_of(3), {.final_states = false, .closed = false});
  {
    auto db = runlog::Database::open(folder / "b" / "presum.db", runlog::Database::Mode::kWrite);
    ASSERT_TRUE(db->execute("UPDATE segment SET incomplete='disk full', incomplete_after=2"));
  }
  const auto c = testing::compare_folders(folder / "a", folder / "b");
  EXPECT_TRUE(
      contains(c.models[0].remarks, "the record of B is incomplete after step 2: disk full"));
  EXPECT_FALSE(contains(c.models[0].remarks, "not closed"));
}

TEST(Compare, SaysThatParametersWereNeverSeenBefore) {
  auto a = steps_hashed_in_slices(30);
  auto b = steps_hashed_in_slices(30);
  change_layer(b, "layers.10", 0);
  a.erase(a.begin());
  b.erase(b.begin());
  const auto c = compare_steps(a, b);
  expect_first(c, Stage::kParameters, 2, {10, 11, 12});
  EXPECT_EQ(c.first()->last_identical, std::nullopt);
  EXPECT_EQ(c.first()->bracket, "these were not compared before");
  EXPECT_TRUE(has(c.first()->origin, "were not compared before"));
  EXPECT_TRUE(c.first()->cause.empty());
}

TEST(Compare, DoesNotCompareSlicesOfModelsThatTrainOtherParameters) {
  auto b = steps_hashed_in_slices(5);
  for (StepRecord& s : b) {
    for (WorkerRecord& w : s.workers) {
      if (s.step == 0) w.states.front().kind = StateHash::Kind::kBuffers;  // frozen
      for (StateHash& h : w.states) h.value ^= s.step > 0;
    }
  }
  const auto c = compare_steps(steps_hashed_in_slices(5), b);
  EXPECT_EQ(c.models[0].at(Stage::kParameters).compared, 1U);
  EXPECT_TRUE(contains(c.models[0].not_compared, "of models with other parameters"));
}

TEST(Compare, NamesWhatDiffersOfTheOptimiser) {
  auto b = steps_hashed_in_slices(4);
  change_layer(b, "layers.2", 1);
  const auto named =
      compare_steps(steps_hashed_in_slices(4), b, {.facts = {{"optimizer.momentum", "0.9"}}},
                    {.facts = {{"optimizer.momentum", "0"}}});
  expect_first(named, Stage::kConfiguration, 0, {});
  EXPECT_TRUE(named.first()->cause.starts_with(
      "the update of step 0 itself differs (optimizer.momentum: 0.9 in A, 0 in B)"))
      << named.first()->cause;
  for (StepRecord& s : b) {
    for (WorkerRecord& w : s.workers) set(w, Kind::kLearningRate, 0.05);
  }
  EXPECT_TRUE(
      has(compare_steps(steps_hashed_in_slices(4), b).first()->cause, "(learning_rate: 0.1 in A"));
}

TEST(Compare, SaysThatAnUpdateWasLeftOut) {
  const auto c = changed_late([](StepRecord& s) {
    if (s.step >= 4) --s.workers[1].optimizer_step;
  });
  EXPECT_TRUE(has(c.first()->cause, "other numbers of optimiser steps from step 4 on"));
  EXPECT_TRUE(contains(c.models[0].remarks, "rank 11 made fewer optimiser steps in B than in the"));
}

TEST(Compare, BlamesNoUpdateWhereGradientsBeforeItWereNotCompared) {
  auto a = steps_hashed_in_slices(4);
  auto b = steps_hashed_in_slices(4);
  for (auto* steps : {&a, &b}) {
    (*steps)[0].workers[1].skipped_parameters = 1;
    for (WorkerRecord& w : (*steps)[0].workers) {
      w.reduced_norm = NAN;
      w.reduced_fingerprint = 0;
    }
  }
  change_layer(b, "layers.2", 1);
  const auto c = compare_steps(a, b);
  expect_first(c, Stage::kParameters, 1, {10, 11, 12});
  EXPECT_TRUE(c.first()->cause.empty()) << c.first()->cause;
}

TEST(Compare, FindsALossAndItsMicroBatch) {
  const auto c = changed_at(8, [](StepRecord& s) {
    s.workers[1].loss = std::nextafter(s.workers[1].loss, 9);
    s.workers[1].micro[1].loss = std::nextafter(s.workers[1].micro[1].loss, 9);
  });
  expect_first(c, Stage::kLoss, 8, {11});
  EXPECT_TRUE(contains(texts(first(c)), "micro-batch 2 of 2"));
}

TEST(Compare, FindsALossThatIsNanInOneRun) {
  const auto c = changed_at(8, [](StepRecord& s) {
    s.workers[1].loss = NAN;
    s.workers[1].loss_nonfinite = true;
  });
  expect_first(c, Stage::kLoss, 8, {11});
}

TEST(Compare, FindsOneLayersGradientEvenIfEveryNormStays) {
  const auto c = changed_at(7, [](StepRecord& s) { change_gradient(s, 2, {"layers.2"}); });
  expect_first(c, Stage::kGradient, 7, {12});
  EXPECT_EQ(first(c).layers, Names{"layers.2"});
  EXPECT_EQ(texts(first(c)), Names{"1 of 4 layers: layers.2; norm 3.5 in both"});
  EXPECT_EQ(c.first()->last_identical, 6U);
  EXPECT_NE(c.first()->origin.find("the backward pass of layers.2"), std::string::npos);
}

TEST(Compare, NamesLayersInTheOrderOfTheBackwardPass) {
  const auto c = changed_at(7, [](StepRecord& s) {
    change_gradient(s, 2, {"embed", "layers.2", "layers.10"});
  });
  EXPECT_EQ(first(c).layers, (Names{"layers.10", "layers.2", "embed"}));
}

TEST(Compare, NamesALayerThatOneRunAloneHasAGradientOf) {
  const auto c = changed_at(2, [](StepRecord& s) {
    s.workers[0].fingerprint ^= 1;
    std::erase_if(s.groups, [](const GroupRecord& g) { return g.id == name_hash("layers.2"); });
  });
  EXPECT_TRUE(contains(texts(first(c)), "layers.2 only in A; the other layers are equal"));
}

TEST(Compare, FallsBackOnNormsOfLayers) {
  auto a = steps_of(3);
  auto b = steps_of(3);
  for (auto* steps : {&a, &b}) {
    for (StepRecord& s : *steps) {
      for (GroupRecord& g : s.groups) g.fingerprints.clear();
    }
  }
  b[1].workers[0].fingerprint ^= 1;
  EXPECT_TRUE(contains(texts(first(compare_steps(a, b))), "no norm of a layer shows it"));
  group_of(b[1], "head").norms[0] = 9;
  EXPECT_EQ(first(compare_steps(a, b)).layers, Names{"head"});
}

TEST(Compare, TellsAReductionOfEqualGradients) {
  const auto c = changed_at(5, [](StepRecord& s) {
    for (WorkerRecord& w : s.workers) {
      w.reduced_fingerprint ^= 1;
      w.reduced_norm = std::nextafter(w.reduced_norm, 2);
    }
  });
  expect_first(c, Stage::kReduction, 5, {10, 11, 12});
  EXPECT_NE(c.first()->origin.find("equal gradients went in"), std::string::npos);
  EXPECT_TRUE(c.first()->unseen.empty());
}

std::vector<StepRecord> audited(std::uint64_t differing, SumOrder order) {
  auto out = steps_of(6);
  const AuditRecord audit{.elements = 100,
                          .differing = differing,
                          .accumulation = Accumulation::kF32,
                          .order = order,
                          .division = Division::kOnce};
  for (StepRecord& s : out) {
    for (WorkerRecord& w : s.workers) w.audit = audit;
  }
  return out;
}

TEST(Compare, TakesAuditsForNoSettings) {
  const auto c = compare_steps(audited(3, SumOrder::kTree), audited(4, SumOrder::kRing));
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
  EXPECT_EQ(c.models[0].at(Stage::kConfiguration).differing, 0U);
}

TEST(Compare, SaysWhatAuditsSayOfReductionsThatDiffer) {
  auto b = audited(4, SumOrder::kRing);
  for (WorkerRecord& w : b[5].workers) w.reduced_fingerprint ^= 1;
  const auto c = compare_steps(audited(3, SumOrder::kTree), b);
  expect_first(c, Stage::kReduction, 5, {10, 11, 12});
  EXPECT_TRUE(contains(texts(first(c)),
                       "as last audited: 3 of 100 elements not correctly rounded, fp32 sum, order "
                       "tree, division once in A; 4 of 100"));
  const auto one = compare_steps(steps_of(6), b);
  EXPECT_TRUE(contains(texts(first(one)), "as last audited: not audited in A; 4 of 100"));
}

TEST(Compare, SaysThatGradientsWereNotRead) {
  const auto skip = [](StepRecord& s) { s.workers[0].skipped_parameters = 1; };
  const auto c = changed_at(4, skip);
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
  EXPECT_EQ(c.models[0].at(Stage::kGradient).compared, kSteps);
  EXPECT_TRUE(contains(c.models[0].not_compared,
                       "gradients that were not read (sparse, or of earlier micro-batches alone) "
                       "at 1 of 12 common steps"));
}

TEST(Compare, DoesNotCompareWhereNoGradientWasRead) {
  const auto c = changed_at(4, [](StepRecord& s) {
    for (WorkerRecord& w : s.workers) {
      w.skipped_parameters = 9;
      w.fingerprint = 0;
      w.grad_norm = NAN;
    }
  });
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
  EXPECT_EQ(c.models[0].at(Stage::kGradient).compared, kSteps - 1);
  EXPECT_TRUE(contains(c.models[0].not_compared,
                       "local-gradient at 1 of 12 common steps: no gradient was read"));
}

TEST(Compare, FindsParametersThatDifferAfterTheLastStepOnly) {
  const testing::TempFolder folder;
  const auto steps = steps_of(3);
  testing::record(folder / "a", steps);
  auto b = steps;
  for (WorkerRecord& w : b.back().workers) w.states[3].value ^= 1;  // in the final notes
  testing::record(folder / "b", b);
  const auto c = testing::compare_folders(folder / "a", folder / "b");
  EXPECT_EQ(c.models[0].at(Stage::kFinal).differing, 1U);
  EXPECT_EQ(c.models[0].at(Stage::kFinal).first->layers, Names{"head"});
}

// ---- what follows from a difference, and what is not known

TEST(Compare, KeepsTheFirstDifferenceOfEveryStage) {
  const auto c = changed_from(4, [](StepRecord& s) {
    if (s.step == 4) change_gradient(s, 1, {"head"});
    if (s.step < 6) return;
    for (WorkerRecord& w : s.workers) {
      w.loss += 1;
      w.states[3].value ^= 1;
    }
  });
  expect_first(c, Stage::kGradient, 4, {11});
  EXPECT_EQ(c.models[0].at(Stage::kParameters).first->step, 6U);
  EXPECT_EQ(c.models[0].at(Stage::kLoss).first->step, 6U);
  EXPECT_EQ(c.models[0].at(Stage::kLoss).differing, 6U);
  EXPECT_EQ(c.models[0].at(Stage::kData).first, std::nullopt);
}

TEST(Compare, DoubtsTheComputationWhereAllWorkersDifferAndParametersWereNotSeen) {
  const auto c = changed_from(7, [](StepRecord& s) {
    for (WorkerRecord& w : s.workers) w.states.clear();
    for (std::size_t i = 0; i < s.workers.size(); ++i) change_gradient(s, i, {"head"});
  });
  expect_first(c, Stage::kGradient, 7, {10, 11, 12});
  EXPECT_EQ(c.first()->unseen, std::vector<Stage>{Stage::kParameters});
  EXPECT_NE(c.first()->origin.find("either"), std::string::npos);
}

TEST(Compare, SaysBetweenWhichStepsADifferenceBegan) {
  std::vector<StepRecord> sparse;
  for (std::uint64_t s = 0; s < 50; s += 10) sparse.push_back(step_of(s, 3));
  for (StepRecord& s : sparse) {
    if (s.step >= 30) change_gradient(s, 0, {"head"});
  }
  const RunOptions every{.facts = {{"every", "10"}}};
  const auto c = compare_steps(steps_of(50), sparse, {.facts = {{"every", "1"}}}, every);
  expect_first(c, Stage::kGradient, 30, {10});
  EXPECT_EQ(c.first()->last_identical, 20U);
  EXPECT_EQ(c.first()->common_steps, 5U);
  EXPECT_TRUE(contains(c.first()->not_compared, "45 of the 50 steps of A"));
}

TEST(Compare, ComparesParametersOfEqualSlicesOnly) {
  std::vector<StepRecord> sparse;
  for (std::uint64_t s = 0; s < 50; s += 10) sparse.push_back(step_of(s, 3));
  const auto c = compare_steps(steps_of(50), sparse, {.facts = {{"every", "1"}}},
                               {.facts = {{"every", "10"}}});
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
  EXPECT_EQ(c.models[0].at(Stage::kParameters).compared, 1U) << "step 0: all are hashed";
  EXPECT_TRUE(contains(c.models[0].not_compared, "hashes are of other parameters"));
}

TEST(Compare, TakesMissingStepsAndWorkersForUnknown) {
  auto b = steps_of(kSteps);
  b[6].workers.erase(b[6].workers.begin() + 1);
  b[6].missing_replicas = {1};
  for (GroupRecord& g : b[6].groups) {
    g.norms.erase(g.norms.begin() + 1);
    g.maxima.erase(g.maxima.begin() + 1);
    g.fingerprints.erase(g.fingerprints.begin() + 1);
  }
  b.erase(b.begin() + 3);
  const auto c = compare_steps(steps_of(kSteps), b);
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
  EXPECT_EQ(c.models[0].common_steps, kSteps - 1);
  EXPECT_TRUE(contains(c.models[0].not_compared, "workers whose packet is missing"));
  EXPECT_TRUE(contains(c.models[0].not_compared, "1 of the 12 steps of A"));
}

TEST(Compare, ComparesTheCommonStepsOfRunsOfOtherLengths) {
  const auto c = compare_steps(steps_of(8), steps_of(5));
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
  EXPECT_EQ(c.models[0].common_steps, 5U);
  EXPECT_TRUE(contains(c.models[0].not_compared, "did not end at the same step"));
}

TEST(Compare, SaysThatNothingIsInCommon) {
  auto late = steps_of(3);
  for (StepRecord& s : late) s.step += 100;
  EXPECT_EQ(compare_steps(steps_of(3), late).outcome, Outcome::kNotComparable);
  const auto c = compare_steps(steps_of(3), {});
  EXPECT_EQ(c.outcome, Outcome::kNotComparable);
  EXPECT_FALSE(c.reason.empty());
}

// ---- other numbers of workers

TEST(Compare, FindsRunsIdenticalThatDifferInTheNumberOfWorkersOnly) {
  const auto c = compare_steps(steps_sharing_rows(2), steps_sharing_rows(3));
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
  EXPECT_EQ(c.agreement,
            "identical for 2 and 3 workers, bit for bit, at 6 common steps: samples, parameters, "
            "reduction at 2 steps, final parameters; not compared: random generators, loss, local "
            "gradient");
  const ModelComparison& m = c.models[0];
  EXPECT_TRUE(m.other_worlds);
  EXPECT_EQ(m.at(Stage::kConfiguration).differing, 6U);
  EXPECT_EQ(m.at(Stage::kData).compared, 6U);
  EXPECT_EQ(m.at(Stage::kParameters).compared, 6U);
  EXPECT_EQ(m.at(Stage::kReduction).compared, 2U);
  EXPECT_EQ(m.at(Stage::kGradient).compared, 0U);
  EXPECT_TRUE(contains(m.not_compared, "local-gradient: the numbers of workers differ"));
}

TEST(Compare, ComparesWhatIsOfAllWorkersWhereTheirNumbersDiffer) {
  auto b = steps_sharing_rows(3);
  for (WorkerRecord& w : b[5].workers) w.states[0].value ^= 1;
  const auto c = compare_steps(steps_sharing_rows(2), b);
  expect_first(c, Stage::kConfiguration, 0, {});
  EXPECT_TRUE(contains(texts(first(c)), "workers: 2 in A, 3 in B"));
  EXPECT_EQ(c.first()->first_number, Stage::kParameters);
  EXPECT_FALSE(c.first()->other_worlds);
}

TEST(Compare, FindsOtherSettingsBesideOtherNumbersOfWorkers) {
  auto b = steps_sharing_rows(3);
  for (StepRecord& s : b) {
    for (WorkerRecord& w : s.workers) set(w, Kind::kLearningRate, 0.05);
  }
  expect_first(compare_steps(steps_sharing_rows(2), b), Stage::kConfiguration, 0, {});
  const auto facts = compare_steps(steps_sharing_rows(2), steps_sharing_rows(3),
                                   {.facts = {{"model", "M"}}}, {.facts = {{"model", "N"}}});
  expect_first(facts, Stage::kConfiguration, 0, {});
}

TEST(Compare, DoesNotCallOtherNumbersOfWorkersIdenticalForTheirStartAlone) {
  const RunOptions open{.final_states = false};
  auto a = steps_sharing_rows(2);
  auto b = steps_sharing_rows(3);
  for (auto* steps : {&a, &b}) steps->resize(1);
  expect_first(compare_steps(a, b, open, open), Stage::kConfiguration, 0, {});
}

TEST(Compare, FindsOtherSamplesWhereNumbersOfWorkersDiffer) {
  auto b = steps_sharing_rows(3);
  b[2].workers[0].samples.hashes[0] = 1;
  const auto c = compare_steps(steps_sharing_rows(2), b);
  EXPECT_EQ(c.models[0].at(Stage::kData).first->step, 2U);
  EXPECT_EQ(c.models[0].at(Stage::kData).first->what, "samples (1 of 12 over all workers)");
}

// ---- facts

TEST(Facts, ThatAreTheSameNumberAreEqual) {
  const auto c =
      compare_steps(steps_of(2), steps_of(2), {.facts = {{"optimizer.weight_decay", "0"}}},
                    {.facts = {{"optimizer.weight_decay", "0.0"}}});
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
  EXPECT_TRUE(c.facts.empty());
}

TEST(Facts, OfTheProcessAreLeftOut) {
  const auto c =
      compare_steps(steps_of(2), steps_of(2), {.facts = {{"pid", "1"}}}, {.facts = {{"pid", "2"}}});
  EXPECT_TRUE(c.facts.empty());
}

TEST(Facts, OfTheEnvironmentAreToldAndDecideNothing) {
  const RunOptions a{.facts = {{"torch", "2.8"}, {"threads", "1"}, {"env.NCCL_ALGO", "ring"}}};
  const RunOptions b{.facts = {{"torch", "2.9"}, {"threads", "1"}}};
  const auto c = compare_steps(steps_of(2), steps_of(2), a, b);
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
  ASSERT_EQ(c.facts.size(), 2U);
  EXPECT_EQ(c.facts[0].key, "env.NCCL_ALGO");
  EXPECT_EQ(c.facts[0].b, "");
  EXPECT_EQ(c.facts[1].a, "2.8");
  EXPECT_TRUE(c.facts[1].all_ranks);
}

TEST(Facts, ThatDefineTheTrainingAreAConfiguration) {
  const auto c = compare_steps(steps_of(2), steps_of(2), {.facts = {{"optimizer", "SGD"}}},
                               {.facts = {{"optimizer", "Adam"}}});
  expect_first(c, Stage::kConfiguration, 0, {});
  EXPECT_EQ(first(c).what, "optimizer");
  EXPECT_EQ(c.first()->at(Stage::kConfiguration).differing, 2U);
  EXPECT_TRUE(contains(texts(first(c)), "optimizer: SGD in A, Adam in B"));
}

TEST(Facts, ThatOnlyOneRunKnowsAreUnknown) {
  const auto c = compare_steps(steps_of(2), steps_of(2), {.facts = {{"model", "M"}}},
                               {.facts = {{"pid", "1"}, {"torch", "2"}}});
  EXPECT_TRUE(c.facts.empty());
}

// ---- several models

TEST(Compare, ComparesEveryModelAndNamesTheFirstToDiffer) {
  const testing::TempFolder folder;
  auto one = steps_of(4);
  auto two = steps_of(4);
  for (StepRecord& s : two) s.model.module = 1;
  auto both = one;
  both.insert(both.end(), two.begin(), two.end());
  testing::record(folder / "a", both);
  change_gradient(both[2], 0, {"head"});
  change_gradient(both[4 + 1], 1, {"embed"});
  testing::record(folder / "b", both);
  const auto c = testing::compare_folders(folder / "a", folder / "b");
  ASSERT_EQ(c.models.size(), 2U);
  EXPECT_EQ(c.first()->module, 1U);
  EXPECT_EQ(c.models[0].at(Stage::kGradient).first->step, 2U);
}

TEST(Compare, ListsModelsOfOneRunOnly) {
  const testing::TempFolder folder;
  auto steps = steps_of(2);
  testing::record(folder / "a", steps);
  for (StepRecord& s : steps_of(2)) {
    s.model.module = 1;
    steps.push_back(s);
  }
  testing::record(folder / "b", steps);
  const auto c = testing::compare_folders(folder / "a", folder / "b");
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
  EXPECT_EQ(c.not_compared, Names{"module 1, shard 0: only in B"});
}

// ---- the document

TEST(Document, SaysWhatTheComparisonSays) {
  const auto c = changed_at(7, [](StepRecord& s) { change_gradient(s, 2, {"layers.2"}); });
  const auto json = document(c);
  EXPECT_EQ(json["outcome"], "different");
  const auto& model = json["models"][0];
  EXPECT_EQ(model["first_stage"], "local-gradient");
  EXPECT_EQ(model["first_step"], 7);
  EXPECT_EQ(model["last_identical"], 6);
  EXPECT_EQ(model["stages"][5]["first"]["ranks"], std::vector<int>{12});
  EXPECT_EQ(model["stages"][5]["first"]["layers"], std::vector<std::string>{"layers.2"});
  EXPECT_TRUE(model["stages"][1]["first"].is_null());
  EXPECT_EQ(model["positions_only"], false);
  EXPECT_TRUE(json["agreement"].get<std::string>().empty());
}

TEST(Document, SaysBetweenWhichStepsParametersBeganToDiffer) {
  const auto json = document(changed_late());
  const auto& model = json["models"][0];
  EXPECT_EQ(model["last_identical"], 2);
  EXPECT_EQ(model["stages"][3]["first"]["last_seen"], 2);
  EXPECT_TRUE(model["stages"][7]["first"].is_null());
  EXPECT_TRUE(model["dated_after"].is_null());
  for (const auto* key : {"bracket", "dated", "cause"}) EXPECT_NE(model[key], "") << key;
}

TEST(Document, SaysThatOnlyPositionsOfSamplesWereCompared) {
  auto b = steps_of(4);
  b[2].workers[1].loss += 1;
  const auto json = document(compare_steps(steps_of(4), b, {}, {.salt = 6}));
  EXPECT_EQ(json["models"][0]["positions_only"], true);
}

}  // namespace
}  // namespace presum::compare
