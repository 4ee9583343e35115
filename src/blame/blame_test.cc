// SPDX-License-Identifier: Apache-2.0
#include "blame/blame.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "blame/document.h"
#include "blame/usual.h"
#include "runlog/testing.h"
#include "runlog/writer.h"

namespace presum::blame {
namespace {

using presum::testing::FakeClock;
using presum::testing::TempFolder;
using Path = std::filesystem::path;

constexpr std::uint64_t kLayer = 77;

// Two ranks. Rank 1 draws samples 10 and 11 at every fifth step, and its loss is 8 there.
StepRecord step_of(std::uint64_t step) {
  StepRecord r;
  r.model.segment = 1;
  r.step = step;
  r.workers_expected = 2;
  r.loss_mean = step % 5 == 0 ? 5 : 2;
  for (std::uint32_t i = 0; i < 2; ++i) {
    WorkerRecord w;
    w.rank = 4 + i;
    w.replica = i;
    const bool spikes = i == 1 && step % 5 == 0;
    w.loss = spikes ? 8 : 2;
    w.grad_norm = spikes ? 30 : 1;
    w.tokens = 100;
    w.micro_batches = 2;
    w.micro = {{w.loss, 1, 100}, {w.loss, 1, spikes ? 0U : 50U}};
    const std::uint64_t first = spikes ? 10 : 100 * (step + 1) + 10 * i;
    w.indices = {first, first + 1};
    w.samples.rows = 2;
    w.samples.hashes = {first * 7, (first + 1) * 7};
    r.workers.push_back(w);
  }
  GroupRecord g;
  g.id = kLayer;
  g.norms = {1, step % 5 == 0 ? 29.0F : 1.0F};
  g.maxima = {0.5, 9};
  r.groups = {g};
  return r;
}

void write(const Path& folder, std::uint64_t steps,
           const std::function<void(StepRecord&)>& change) {
  FakeClock clock;
  auto writer = runlog::Writer::open(folder, clock.function(), runlog::Journal::kWal);
  ASSERT_TRUE(writer) << writer.error().message;
  for (std::uint64_t s = 0; s < steps; ++s) {
    StepRecord r = step_of(s);
    change(r);
    ASSERT_TRUE(writer->add(r));
  }
  ASSERT_TRUE(writer->close());
}

Result<std::vector<Step>> asked(const Path& folder, const Question& question) {
  auto log = RunLog::open(folder);
  if (!log) return log.error();
  return blame(*log, question);
}

// The result for a step of a run with `steps` steps.
Step blamed(
    std::uint64_t step, std::uint64_t steps,
    const std::function<void(StepRecord&)>& change = [](StepRecord&) {}) {
  const TempFolder folder;
  write(folder / "run", steps, change);
  const auto told = asked(folder / "run", {.step = step});
  EXPECT_TRUE(told && told->size() == 1);
  return told->front();
}

TEST(Usual, IsTheMedianOfTheLastFinite) {
  Usual usual;
  EXPECT_TRUE(std::isnan(usual.median()));
  usual.add(std::numeric_limits<double>::infinity());
  usual.add(kNaN);
  EXPECT_TRUE(std::isnan(usual.median()));
  for (int i = 0; i < 100; ++i) usual.add(7);
  for (std::size_t i = 0; i < kUsualSteps; ++i) usual.add(1);
  EXPECT_EQ(usual.median(), 1);
  usual.add(3);
  EXPECT_EQ(usual.median(), 1);
}

TEST(Blame, TellsWhatWasBehindASpike) {
  const Step step = blamed(10, 12);
  EXPECT_EQ(step.compared_with, 10U);
  EXPECT_EQ(step.loss.usual, 2);
  ASSERT_EQ(step.workers.size(), 2U);
  const Worker& usual = step.workers[0];
  const Worker& worker = step.workers[1];
  EXPECT_EQ(usual.distance(), 1);
  EXPECT_EQ(worker.distance(), 30) << "of the norm; that of the loss is 4";
  EXPECT_EQ(worker.without_target, std::vector<std::size_t>{1});
  ASSERT_EQ(worker.layers.size(), 1U);
  EXPECT_EQ(worker.layers[0].norm.ratio(), 29);
  EXPECT_EQ(worker.layers[0].peak, 9);
  ASSERT_EQ(worker.samples.size(), 2U);
  const Sample& sample = worker.samples[0];
  EXPECT_EQ(sample.index, 10U);
  EXPECT_EQ(sample.draws_before, 2U) << "at steps 0 and 5";
  ASSERT_EQ(sample.before.size(), 2U);
  EXPECT_EQ(sample.before[1].step, 5U);
  EXPECT_EQ(sample.before[1].rank, 5U);
  EXPECT_EQ(sample.before[1].loss.ratio(), 4) << "it spiked then too";
  EXPECT_TRUE(std::isnan(sample.before[0].loss.usual)) << "the first step of all";
  EXPECT_TRUE(usual.samples[0].before.empty());
}

TEST(Blame, TellsWhoElseDrewASample) {
  const Step step = blamed(2, 3, [](StepRecord& r) {
    if (r.step == 2) r.workers[0].indices = r.workers[1].indices;
  });
  EXPECT_EQ(step.workers[0].samples[0].others, std::vector<std::uint32_t>{5});
  EXPECT_EQ(step.workers[1].samples[0].others, std::vector<std::uint32_t>{4});
}

TEST(Blame, OfRowsWithoutIndicesTheHashesDo) {
  const Step step = blamed(10, 11, [](StepRecord& r) {
    for (WorkerRecord& w : r.workers) w.indices.clear();
  });
  const Sample& sample = step.workers[1].samples[0];
  EXPECT_FALSE(sample.index);
  EXPECT_TRUE(sample.hash);
  EXPECT_EQ(sample.draws_before, 2U);
}

TEST(Blame, WhatIsNotFiniteIsFurthestFromUsual) {
  const Step step = blamed(3, 4, [](StepRecord& r) {
    if (r.step != 3) return;
    r.workers[0].nonfinite = 4;
    r.workers[0].grad_norm = kNaN;
  });
  EXPECT_TRUE(std::isinf(step.workers[0].distance()));
  EXPECT_EQ(document({step})[0]["workers"][0]["grad_norm"]["value"], "inf");
}

TEST(Blame, FarBackOnlyTheLastDrawsAreKept) {
  const Step step = blamed(100, 101);
  const Sample& sample = step.workers[1].samples[0];
  EXPECT_EQ(sample.draws_before, 20U);
  ASSERT_EQ(sample.before.size(), kEarlierKept);
  EXPECT_EQ(sample.before.back().step, 95U);
}

TEST(Blame, AStepThatIsNotThereIsAnError) {
  const TempFolder folder;
  write(folder / "run", 4, [](StepRecord&) {});
  const auto none = asked(folder / "run", {.step = 9});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kNotFound);
  EXPECT_NE(none.error().message.find("from 0 to 3"), std::string::npos);
  EXPECT_EQ(none.error().message.find("segment"), std::string::npos);
  EXPECT_FALSE(asked(folder / "run", {.step = 1, .segment = 2}));
  write(folder / "run", 2, [](StepRecord& r) { r.model.segment = 2; });
  EXPECT_NE(asked(folder / "run", {.step = 9}).error().message.find("--segment asks for one"),
            std::string::npos);
}

}  // namespace
}  // namespace presum::blame
