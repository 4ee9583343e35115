// SPDX-License-Identifier: Apache-2.0
#include "compare/origin.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "compare/compare.h"
#include "compare/testing.h"
#include "compare/wording.h"

namespace presum::compare {
namespace {

using testing::Change;
using testing::change_gradient;
using testing::change_layer;
using testing::changed_from;
using testing::changed_late;
using testing::compare_folders;
using testing::compare_steps;
using testing::contains;
using testing::expect_first;
using testing::has;
using testing::record;
using testing::remove_worker;
using testing::set;
using testing::steps_hashed_in_slices;
using testing::steps_of;
using testing::TempFolder;
using Kind = FingerprintKind;
using Step = std::optional<std::uint64_t>;

void change_first_layer(StepRecord& step) {
  for (WorkerRecord& w : step.workers) w.states[0].value ^= 1;
}

Origin origin_of_change(std::uint64_t step, const Change& change) {
  const auto c = changed_from(step, change);
  return c.first() == nullptr ? Origin{} : c.first()->origin.value_or(Origin{});
}

TEST(Origin, IsAPlaceOfTheFirstStageThatDiffers) {
  using Place = Origin::Place;
  const auto data = [](StepRecord& s) { s.workers[1].samples.hashes[3] = 99; };
  EXPECT_EQ(origin_of_change(4, data).place, Place::kData);
  const auto dealt = [](StepRecord& s) {
    std::swap(s.workers[0].samples.hashes, s.workers[2].samples.hashes);
  };
  EXPECT_EQ(origin_of_change(4, dealt).place, Place::kDealing);
  const auto labels = [](StepRecord& s) { set(s.workers[0], Kind::kBatch, std::uint64_t{1}); };
  EXPECT_EQ(origin_of_change(4, labels).place, Place::kLabels);
  const auto loss = [](StepRecord& s) { s.workers[0].loss += 1; };
  EXPECT_EQ(origin_of_change(4, loss).place, Place::kForward);
  const auto gradient = [](StepRecord& s) { change_gradient(s, 1, {"head"}); };
  EXPECT_EQ(origin_of_change(4, gradient).place, Place::kBackward);
  const auto reduction = [](StepRecord& s) { s.workers[0].reduced_fingerprint ^= 1; };
  EXPECT_EQ(origin_of_change(5, reduction).place, Place::kReduction);
  EXPECT_EQ(origin_of_change(0, change_first_layer).place, Place::kStart);
  const auto buffers = [](StepRecord& s) {
    for (WorkerRecord& w : s.workers) {
      for (StateHash& h : w.states) h.value ^= h.kind == StateHash::Kind::kBuffers;
    }
  };
  EXPECT_EQ(origin_of_change(4, buffers).place, Place::kBuffers);
  const Origin update = origin_of_change(4, change_first_layer);
  EXPECT_EQ(update.place, Place::kUpdate);
  ASSERT_TRUE(update.update.has_value());
  EXPECT_EQ(update.update->first, 0U) << "when the slice was last hashed";
  EXPECT_EQ(update.update->last, 3U);
  EXPECT_FALSE(update.update->reduced_equal);
}

TEST(Origin, SaysThatSamplesOfAnotherSaltMayBeTheCause) {
  auto b = steps_of(4);
  b[2].workers[1].loss += 1;
  const auto c = compare_steps(steps_of(4), b, {}, {.salt = 6});
  expect_first(c, Stage::kLoss, 2, {11});
  EXPECT_TRUE(
      contains(not_compared_texts(c.models[0]), "content of samples at 4 of 4 common steps"));
  EXPECT_TRUE(
      origin_text(*c.first()).starts_with("the samples, whose content was not compared, or the"));
  const auto same_salt = compare_steps(steps_of(4), b);
  EXPECT_FALSE(contains(not_compared_texts(same_salt.models[0]), "content of samples"));
  EXPECT_TRUE(origin_text(*same_salt.first()).starts_with("the forward pass"));
}

TEST(Origin, SaysThatSamplesThatWereNotRecordedMayBeTheCause) {
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
  EXPECT_TRUE(
      origin_text(*c.first()).starts_with("the samples, whose content was not compared, or the"));
}

TEST(Origin, BlamesTheUpdateWhereTheReducedGradientWasEqual) {
  const auto after_reduced = changed_from(1, change_first_layer);
  expect_first(after_reduced, Stage::kParameters, 1, {10, 11, 12});
  EXPECT_TRUE(has(origin_text(*after_reduced.first()), "the reduced gradient was equal"));
  EXPECT_TRUE(
      cause_text(*after_reduced.first()).starts_with("the update of step 0 itself differs"));
  const auto after_unread = changed_from(7, change_first_layer);
  EXPECT_TRUE(has(origin_text(*after_unread.first()), "was not compared there"));
  EXPECT_TRUE(
      cause_text(*after_unread.first()).starts_with("the reduction or the update of one of the"));
}

TEST(Origin, PutsALossThatDiffersFirstBeforeAParameterThatIsSeenLater) {
  const auto c = changed_late([](StepRecord& s) {
    for (WorkerRecord& w : s.workers) w.loss += s.step >= 5 ? 1 : 0;
  });
  expect_first(c, Stage::kLoss, 5, {10, 11, 12});
  EXPECT_EQ(c.first()->at(Stage::kParameters).first->last_seen, 2U);
  EXPECT_TRUE(bracket_text(*c.first()).empty());
  EXPECT_TRUE(has(origin_text(*c.first()), "or the same of an earlier step"))
      << origin_text(*c.first());
}

TEST(Origin, SaysThatUpdatesAfterTheLastRecordedStepMayBeTheCause) {
  const auto a = steps_of(6);
  auto b = a;
  for (WorkerRecord& w : b.back().workers) w.states[0].value ^= 1;
  const TempFolder folder;
  record(folder / "a", a, {.final_states = false, .unrecorded = 2}, &a.back());
  record(folder / "b", a, {.final_states = false, .unrecorded = 2}, &b.back());
  const auto c = compare_folders(folder / "a", folder / "b");
  expect_first(c, Stage::kFinal, 5, {10, 11, 12});
  EXPECT_TRUE(has(origin_text(*c.first()), "update of one of the steps 0 to 7"))
      << origin_text(*c.first());
  EXPECT_TRUE(cause_text(*c.first()).empty()) << "their gradients were not seen";
}

TEST(Causes, NamesWhatDiffersOfTheOptimiser) {
  auto b = steps_hashed_in_slices(4);
  change_layer(b, "layers.2", 1);
  const auto named =
      compare_steps(steps_hashed_in_slices(4), b, {.facts = {{"optimizer.momentum", "0.9"}}},
                    {.facts = {{"optimizer.momentum", "0"}}});
  expect_first(named, Stage::kConfiguration, 0, {});
  EXPECT_TRUE(cause_text(*named.first())
                  .starts_with(
                      "the update of step 0 itself differs (optimizer.momentum: 0.9 in A, 0 in B)"))
      << cause_text(*named.first());
  for (StepRecord& s : b) {
    for (WorkerRecord& w : s.workers) set(w, Kind::kLearningRate, 0.05);
  }
  EXPECT_TRUE(has(cause_text(*compare_steps(steps_hashed_in_slices(4), b).first()),
                  "(learning_rate: 0.1 in A"));
}

TEST(Causes, SaysThatAnUpdateWasLeftOut) {
  const auto c = changed_late([](StepRecord& s) {
    if (s.step >= 4) --s.workers[1].optimizer_step;
  });
  EXPECT_TRUE(has(cause_text(*c.first()), "other numbers of optimiser steps from step 4 on"));
  EXPECT_TRUE(
      contains(remark_texts(c.models[0]), "rank 11 made fewer optimiser steps in B than in the"));
}

TEST(Causes, BlamesNoUpdateWhereGradientsBeforeItWereNotCompared) {
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
  EXPECT_TRUE(cause_text(*c.first()).empty()) << cause_text(*c.first());
}

TEST(Origin, DoubtsTheComputationWhereAllWorkersDifferAndParametersWereNotSeen) {
  const auto c = changed_from(7, [](StepRecord& s) {
    for (WorkerRecord& w : s.workers) w.states.clear();
    for (std::size_t i = 0; i < s.workers.size(); ++i) change_gradient(s, i, {"head"});
  });
  expect_first(c, Stage::kGradient, 7, {10, 11, 12});
  EXPECT_EQ(c.first()->unseen, std::vector<Stage>{Stage::kParameters});
  EXPECT_NE(origin_text(*c.first()).find("either"), std::string::npos);
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
  EXPECT_EQ(cause_text(c.models[0]), "");
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
  EXPECT_EQ(cause_text(m), "");
  EXPECT_TRUE(has(origin_text(m), "the reduced gradient was not compared there")) << origin_text(m);
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
  EXPECT_EQ(cause_text(m), "");
  EXPECT_EQ(m.dated_after, Step());
}

}  // namespace
}  // namespace presum::compare
