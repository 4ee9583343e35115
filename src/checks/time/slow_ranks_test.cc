// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "checks/engine/testing.h"
#include "detect/slow_workers.h"

namespace presum::checks {
namespace {

// Steps of ranks that wait for the slowest one in the reduction.
class TimedRun {
 public:
  explicit TimedRun(std::uint32_t workers, std::uint32_t per_host = 64)
      : workers_(workers), slow_(detect::Options{}), diagnoser_(ModelKey{1, 0, 0}) {
    for (std::uint32_t i = 0; i < workers; ++i) {
      WorkerFacts facts;
      facts.host = "node" + std::to_string(i / per_host);
      diagnoser_.hello(
          {.model_index = 0, .replica = i, .dp_group = 0, .rank = i, .replicas = workers}, facts);
    }
  }

  using Spoil = std::function<void(WorkerRecord&)>;
  // `waits`: whether faster ranks wait in the reduction, as hooks see it.
  void run(int steps, const Spoil& spoil, bool waits = true) {
    for (int s = 0; s < steps; ++s) step(spoil, waits);
  }

  std::vector<Finding> findings() const {
    std::vector<Finding> out;
    for (const auto& numbered : diagnoser_.findings()) out.push_back(numbered.finding);
    return out;
  }
  Finding only() const {
    EXPECT_EQ(findings().size(), 1U);
    return findings().empty() ? Finding{} : findings().front();
  }

 private:
  void step(const Spoil& spoil, bool waits) {
    StepRecord r;
    r.workers_expected = r.workers_seen = workers_;
    r.step = step_++;
    double longest = 0;
    for (std::uint32_t i = 0; i < workers_; ++i) {
      WorkerRecord& w = r.workers.emplace_back();
      w.rank = w.replica = i;
      w.tokens = 1000;
      w.times.seconds = {0.002, 0.03 * noise(), 0.06 * noise(), 0.01, 0.001, 0};
      w.times.queued = 0;
      spoil(w);
      if (std::isnan(w.times.processor)) w.times.processor = w.times.own();
      longest = std::max(longest, w.times.own());
    }
    for (WorkerRecord& w : r.workers) {
      w.times.of(Phase::kReduction) = 0.004 + (waits ? longest - w.times.own() : 0);
    }
    diagnoser_.update(r, {}, slow_.judge(r));
  }
  double noise() { return 1 + std::normal_distribution<>(0, 0.01)(random_); }

  std::uint32_t workers_;
  std::uint64_t step_ = 0;
  std::mt19937_64 random_{5};
  detect::SlowWorkers slow_;
  Diagnoser diagnoser_;
};

void longer(WorkerRecord& w, Phase phase, double seconds) { w.times.of(phase) += seconds; }

// Computes in proportion to its tokens.
void of_tokens(WorkerRecord& w, std::uint64_t tokens) {
  w.tokens = tokens;
  for (const Phase phase : {Phase::kForward, Phase::kBackward}) {
    w.times.of(phase) *= static_cast<double>(tokens) / 1000;
  }
}

// The single finding of a run in which each rank is changed.
Finding found(std::uint32_t workers, int steps, const TimedRun::Spoil& spoil) {
  TimedRun run(workers);
  run.run(steps, spoil);
  return run.only();
}

class SlowPhase : public ::testing::TestWithParam<Phase> {};

TEST_P(SlowPhase, IsNamedWithItsCost) {
  TimedRun run(4);
  run.run(40, [](WorkerRecord&) {});
  EXPECT_TRUE(run.findings().empty());
  run.run(40, [&](WorkerRecord& w) {
    if (w.rank == 2) longer(w, GetParam(), 0.04);
  });
  const Finding f = run.only();
  EXPECT_EQ(f.check, GetParam() == Phase::kData ? "data-starved" : "slow-rank");
  EXPECT_EQ(f.ranks, (RankList{2}));
  EXPECT_EQ(f.severity, Severity::kWarning);
  EXPECT_EQ(text_of(f, "phase"), to_string(GetParam()));
  EXPECT_NEAR(static_cast<double>(f.first_step), 40, 4);
  EXPECT_EQ(f.last_step, 79U);
  EXPECT_NE(f.title.find("40 ms longer"), std::string::npos) << f.title;
  EXPECT_NE(f.title.find("of the job"), std::string::npos) << f.title;
  EXPECT_NEAR(number_of(f, "longer_ms"), 40, 1);
  EXPECT_NEAR(number_of(f, "job_share"), number_of(f, "others_wait_ms") / number_of(f, "step_ms"),
              1e-9);
}
INSTANTIATE_TEST_SUITE_P(Phases, SlowPhase,
                         ::testing::Values(Phase::kData, Phase::kForward, Phase::kBackward,
                                           Phase::kOptimizer, Phase::kRest));

TEST(SlowWorkers, OfTwoWorkersTheSlowOneIsNamed) {
  const Finding f = found(2, 60, [](WorkerRecord& w) {
    if (w.rank == 1) longer(w, Phase::kBackward, 0.02);
  });
  EXPECT_EQ(f.ranks, (RankList{1}));
}

// Waiting in a collective that no hook shows looks like own time of the waiting rank.
TEST(SlowWorkers, ATimeThatNobodyWaitsForIsNotNamed) {
  TimedRun run(2);
  run.run(200,
          [](WorkerRecord& w) { longer(w, w.rank == 0 ? Phase::kForward : Phase::kRest, 0.05); });
  EXPECT_TRUE(run.findings().empty());
  TimedRun unseen(4);
  unseen.run(
      100, [](WorkerRecord& w) { longer(w, Phase::kForward, w.rank == 0 ? 0.05 : 0); }, false);
  EXPECT_TRUE(unseen.findings().empty());
}

TEST(SlowWorkers, LessThanAMillisecondIsNotNamed) {
  TimedRun run(4);
  run.run(200, [](WorkerRecord& w) {
    for (double& s : w.times.seconds) s /= 20;
    if (w.rank == 0) longer(w, Phase::kRest, 0.0008);
  });
  EXPECT_TRUE(run.findings().empty());
}

// Ranks that share processors: a rank that computes twice as long is queued at least twice as long.
TEST(SlowWorkers, WhoComputesLongerAndIsQueuedForThatComputesLonger) {
  const Finding f = found(3, 60, [](WorkerRecord& w) {
    const bool slow = w.rank == 1;
    w.times.processor = w.times.own() * (slow ? 2 : 1);
    w.times.queued = slow ? 0.11 : 0.02;
    const double more = w.times.processor + w.times.queued - w.times.own();
    w.times.of(Phase::kBackward) += 0.7 * more;
    w.times.of(Phase::kForward) += 0.3 * more;
  });
  EXPECT_EQ(f.check, "slow-rank");
  EXPECT_EQ(f.severity, Severity::kWarning);
  EXPECT_EQ(text_of(f, "phase"), "backward");
  EXPECT_NE(f.title.find("mostly in its backward pass: it computed 2 times as long"),
            std::string::npos)
      << f.title;
  EXPECT_EQ(f.title.find("for a processor"), std::string::npos) << f.title;
  EXPECT_EQ(f.remedy.find("shared"), std::string::npos) << f.remedy;
}

// Both take half of the time or more, and both are reported.
TEST(SlowWorkers, WhoComputesLongerAndIsQueuedBesidesDoesBoth) {
  const Finding f = found(3, 60, [](WorkerRecord& w) {
    if (w.rank != 1) return;
    w.times.processor = 2 * w.times.own();
    w.times.queued = 0.2;
    longer(w, Phase::kForward, w.times.own() + 0.2);
  });
  EXPECT_NE(f.title.find("in its forward pass and loss: it computed 2 times as long and waited 200 "
                         "ms longer for a processor"),
            std::string::npos)
      << f.title;
  EXPECT_EQ(text_of(f, "because"), "computing and queue");
  EXPECT_NEAR(number_of(f, "queued_longer_ms"), 200, 1);
  EXPECT_EQ(f.severity, Severity::kWarning);
}

TEST(SlowWorkers, AThreadThatDoesNeitherSleepsOrWaits) {
  const Finding f = found(4, 60, [](WorkerRecord& w) {
    w.times.processor = w.times.own();
    if (w.rank == 1) longer(w, Phase::kForward, 0.05);
  });
  EXPECT_NE(f.title.find("in its forward pass and loss: its thread slept, or waited"),
            std::string::npos)
      << f.title;
  EXPECT_EQ(text_of(f, "because"), "sleep or wait");
  EXPECT_NE(f.remedy.find("waits for in the named phase"), std::string::npos);
}

// As when waiting in a collective spins: the others' threads are always on a processor.
TEST(SlowWorkers, WhatThreadsDidIsNotSaidWhereItIsNotKnown) {
  for (const bool on_device : {false, true}) {
    const Finding f = found(4, 60, [&](WorkerRecord& w) {
      if (w.rank == 1) longer(w, Phase::kForward, 0.05);
      w.times.processor = on_device ? 0.002 : 0.2;
      w.times.on_device = on_device;
    });
    EXPECT_NE(f.title.find("in its forward pass and loss; the others wait"), std::string::npos)
        << f.title;
  }
}

// One of several ranks that share processors, slow only because of its queue: no phase is named,
// also not in the remedy.
TEST(SlowWorkers, AQueueNamesNoPhase) {
  const Finding f = found(3, 60, [](WorkerRecord& w) {
    w.times.processor = w.times.own();
    w.times.queued = w.rank == 1 ? 0.08 : 0.01;
    longer(w, Phase::kBackward, w.times.queued);
  });
  EXPECT_EQ(f.check, "slow-rank");
  EXPECT_EQ(text_of(f, "phase"), "processor");
  EXPECT_EQ(text_of(f, "because"), "queue");
  EXPECT_NE(f.title.find("waiting for a processor;"), std::string::npos) << f.title;
  EXPECT_EQ(f.remedy.find("phase"), std::string::npos) << f.remedy;
  EXPECT_EQ(f.severity, Severity::kInfo);
}

TEST(SlowWorkers, AllRanksOfAHostAreASlowNode) {
  TimedRun run(8, 4);
  run.run(200, [](WorkerRecord& w) {
    if (w.rank >= 4) longer(w, Phase::kBackward, 0.05);
  });
  EXPECT_EQ(run.only().check, "slow-node");
  EXPECT_EQ(run.only().ranks, (RankList{4, 5, 6, 7}));
  EXPECT_NE(run.only().title.find("node1"), std::string::npos);
}

TEST(SlowWorkers, OneSlowRankOfAHostIsNoSlowNode) {
  TimedRun run(8, 4);
  run.run(100, [](WorkerRecord& w) {
    if (w.rank == 5) longer(w, Phase::kBackward, 0.05);
  });
  EXPECT_EQ(run.only().check, "slow-rank");
}

TEST(SlowWorkers, LongBatchesAreNoSlowMachine) {
  TimedRun run(4);
  std::mt19937_64 random(3);
  const auto draw = [&](std::uint32_t rank) {
    const double base = rank == 1 ? 2000 : 1000;
    return base * std::exp(std::normal_distribution<>(0, 0.1)(random));
  };
  run.run(100, [&](WorkerRecord& w) { of_tokens(w, static_cast<std::uint64_t>(draw(w.rank))); });
  const auto findings = run.findings();
  ASSERT_FALSE(findings.empty());
  for (const Finding& f : findings) {
    EXPECT_EQ(f.check, "uneven-batches") << f.title;
    EXPECT_EQ(f.severity, Severity::kInfo);
  }
}

TEST(SlowWorkers, WhoeverHasTheLongestBatchIsWaitedFor) {
  TimedRun run(4);
  std::mt19937_64 random(3);
  run.run(100, [&](WorkerRecord& w) { of_tokens(w, 200 + random() % 2000); });
  const Finding f = run.only();
  EXPECT_EQ(f.check, "uneven-batches");
  EXPECT_EQ(f.ranks.size(), 4U);
  EXPECT_NE(f.title.find("not a slow machine"), std::string::npos);
}

TEST(SlowWorkers, AllThatWaitForDataAreStarved) {
  const Finding f = found(4, 60, [](WorkerRecord& w) { longer(w, Phase::kData, 0.1); });
  EXPECT_EQ(f.check, "data-starved");
  EXPECT_EQ(f.severity, Severity::kInfo);
  EXPECT_EQ(f.ranks.size(), 4U);
  TimedRun near(4);
  near.run(60, [](WorkerRecord& w) { longer(w, Phase::kData, 0.03); });
  EXPECT_TRUE(near.findings().empty());
}

}  // namespace
}  // namespace presum::checks
