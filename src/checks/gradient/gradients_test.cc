// SPDX-License-Identifier: Apache-2.0
// nonfinite-gradient, nonfinite-loss, zero-gradient, frozen-gradient.
#include <gtest/gtest.h>

#include <limits>

#include "checks/engine/testing.h"

namespace presum::checks {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

void spoil(WorkerRecord& w) {
  w.grad_norm = kNaN;
  w.nonfinite = 10;
}

TEST(Nonfinite, NamesTheWorkerAndItsFirstStep) {
  Watched w = played(4);
  w.play(5, 5, [](StepRecord& r) { spoil(r.workers[3]); });
  w.play(6, 9, [](WorkerRecord& x) { spoil(x); });
  // the other findings are its effect
  expect(w, "nonfinite-gradient",
         {.ranks = {3}, .severity = Severity::kCritical, .first_step = 5, .last_step = 9});
  EXPECT_EQ(number_of(w.first(), "nonfinite_elements"), 80);
}

TEST(Nonfinite, SaysThatAllAtOnceCameFromTheStepBefore) {
  Watched w = played(4);
  w.play(5, 7, [](WorkerRecord& x) { spoil(x); });
  expect(w, "nonfinite-gradient", {.count = 8, .title = "the reduction of the step before"});
}

TEST(Nonfinite, TwoWorkersAtDifferentTimesAreTwoFindings) {
  Watched w = played(4);
  w.play(5, 5, [](StepRecord& r) { spoil(r.workers[3]); });
  w.play(6, 100);
  w.play(101, 101, [](StepRecord& r) { spoil(r.workers[6]); });
  EXPECT_EQ(w.ids(), (Ids{"nonfinite-gradient", "nonfinite-gradient"}));
}

TEST(Nonfinite, AnInfiniteNormCountsAndAnUnreadOneDoesNot) {
  expect_quiet(played(4, [](StepRecord& r) { r.workers[3].grad_norm = kNaN; }));
  Watched infinite = played(4, [](StepRecord& r) { r.workers[3].grad_norm = kInf; });
  EXPECT_EQ(infinite.ids(), Ids{"nonfinite-gradient"});
}

// With a loss scaler, or, if none is reported, without one.
Watched maybe_scaled(bool scaled) {
  Watched out;
  if (scaled) out.diagnoser.hello(who(0, 0), {"host", {{"grad_scaler", "65536"}}, {}});
  return out;
}

TEST(Nonfinite, AnOverflowThatTheLossScalerLeftOutIsInformation) {
  for (const bool scaled : {true, false}) {
    Watched w = maybe_scaled(scaled);
    w.play(0, 4);
    w.play(5, 5, [](WorkerRecord& x) {
      x.nonfinite = 5;
      x.grad_norm = kInf;
      x.optimizer_step -= 1;
    });
    w.play(6, 9, [](WorkerRecord& x) { x.optimizer_step -= 1; });
    expect(w, "nonfinite-gradient", {.severity = Severity::kInfo});
    EXPECT_EQ(number_of(w.first(), "steps_left_out"), 1);
  }
}

// Loss scaling by hand over master weights: only the parameters show that a step was skipped.
TEST(Nonfinite, StepsThatLeftTheParametersAloneAreInformationOnceTheNextIsFinite) {
  const auto by_hand = [](std::uint64_t last, bool moves, bool one_rank) {
    Watched w;
    w.diagnoser.hello(who(0, 0), {"host", {{"optimizer", "unknown"}}, {}});
    w.play(0, last, [=](StepRecord& r) {
      const bool left_out = r.step % 10 == 4;
      const std::uint64_t before = r.step % 10 == 5 && !moves ? 1 : 0;
      for (WorkerRecord& x : r.workers) {
        x.optimizer_step = 0;
        x.states = {{1, StateHash::Kind::kParameters, r.step - before}};
      }
      if (left_out) spoil(r.workers[one_rank ? 3 : (r.step / 10) % 8]);
    });
    return w.first().severity;
  };
  EXPECT_EQ(by_hand(4, false, false), Severity::kWarning) << "not known yet";
  EXPECT_EQ(by_hand(79, false, false), Severity::kInfo);
  EXPECT_EQ(by_hand(79, true, false), Severity::kWarning) << "they moved";
  EXPECT_EQ(by_hand(79, false, true), Severity::kWarning) << "always one rank";
}

TEST(Nonfinite, OneThatAllRanksHadDoesNotHideTheRankThatAlwaysHas) {
  Watched w = maybe_scaled(true);
  std::uint64_t left_out = 0;
  w.play(0, 149, [&](StepRecord& r) {
    const bool once = r.step == 4;
    const bool often = r.step > 10 && r.step % 10 == 4;
    left_out += once || often ? 1 : 0;
    for (WorkerRecord& x : r.workers) x.optimizer_step = r.step + 1 - left_out;
    for (WorkerRecord& x : r.workers) {
      if (once || (often && x.rank == 3)) spoil(x);
    }
  });
  const std::vector<Finding> found = w.findings();
  const auto third = std::ranges::find(found, RankList{3}, &Finding::ranks);
  ASSERT_NE(third, found.end());
  EXPECT_EQ(third->severity, Severity::kWarning);
}

// A parameter at a bound shows nothing.
TEST(Nonfinite, WhatNeverMovedDoesNotTellThatAStepWasLeftOut) {
  Watched w;
  w.diagnoser.hello(who(0, 0), {"host", {{"optimizer", "unknown"}}, {}});
  w.play(0, 30, [](StepRecord& r) {
    for (WorkerRecord& x : r.workers) {
      x.optimizer_step = 0;
      x.states = {{1, StateHash::Kind::kParameters, 7}};
    }
    if (r.step == 24) spoil(r.workers[2]);
  });
  EXPECT_EQ(w.first().severity, Severity::kWarning);
}

TEST(Nonfinite, ALossThatAScaleMadeInfiniteOnAllRanksIsInformationOnceTheNextIsFinite) {
  const auto infinite = [](bool all) {
    Watched w = maybe_scaled(true);
    w.play(0, 4);
    w.play(5, 5, [&](WorkerRecord& x) {
      x.loss_nonfinite = all || x.rank == 3;
      x.optimizer_step -= 1;
    });
    w.play(6, 9, [](WorkerRecord& x) { x.optimizer_step -= 1; });
    return w.first().severity;
  };
  EXPECT_EQ(infinite(true), Severity::kInfo);
  EXPECT_EQ(infinite(false), Severity::kWarning);
}

TEST(Nonfinite, StepsThatAreLeftOutForEverAreCritical) {
  Watched w = maybe_scaled(true);
  w.play(0, 4);
  const auto stuck = [](StepRecord& r) {
    for (WorkerRecord& x : r.workers) {
      spoil(x);
      x.optimizer_step = 5;
    }
  };
  w.play(5, 20, stuck);
  EXPECT_EQ(w.first().severity, Severity::kInfo);
  w.play(21, 21, stuck);
  EXPECT_EQ(w.first().severity, Severity::kCritical);
}

TEST(Nonfinite, ALossScalerMayLookForItsFirstFactor) {
  const auto play = [](bool scaled, std::uint64_t steps) {
    Watched w = maybe_scaled(scaled);
    w.play(0, steps - 1, [](WorkerRecord& x) {
      x.nonfinite = 5;
      x.grad_norm = kInf;
      x.optimizer_step = 0;
    });
    return w.first().severity;
  };
  EXPECT_EQ(play(true, 4), Severity::kInfo);
  EXPECT_EQ(play(true, 40), Severity::kCritical) << "no optimizer is known, or it never steps";
  EXPECT_EQ(play(false, 4), Severity::kWarning) << "there may be a scaler that nobody told of";
}

// Steps 0 to `last` with an optimizer of this name and non-finite gradients.
Finding overflow(const char* optimizer, std::uint64_t last, std::uint64_t counted_per_step) {
  Watched w;
  w.diagnoser.hello(who(0, 0), {"host", {{"optimizer", optimizer}}, {}});
  w.play(0, last, [&](WorkerRecord& x, StepRecord& r) {
    x.nonfinite = 5;
    x.grad_norm = kInf;
    x.optimizer_step = counted_per_step * (r.step + 1);
  });
  return w.first();
}

TEST(Nonfinite, AnOptimizerThatStoodStillInTheFirstStepsSkippedThem) {
  for (const auto& [optimizer, said, last] :
       {std::tuple{"AdamW", "left the step out", 15}, std::tuple{"unknown", "not known", 15}}) {
    const auto steps = static_cast<std::uint64_t>(last);
    EXPECT_EQ(overflow(optimizer, steps, 0).severity, Severity::kWarning);
    EXPECT_NE(overflow(optimizer, steps, 0).title.find(said), std::string::npos);
    EXPECT_EQ(overflow(optimizer, steps + 1, 0).severity, Severity::kCritical);
    EXPECT_EQ(overflow(optimizer, 3, 1).severity, Severity::kCritical) << "it steps on them";
  }
}

TEST(Nonfinite, AnUnknownOptimizerMayMeetOneLater) {
  Watched w = played(99, [](StepRecord& r) {
    for (WorkerRecord& x : r.workers) x.optimizer_step = 0;
    if (r.step % 30 == 29) spoil(r.workers[3]);
  });
  EXPECT_EQ(w.first().severity, Severity::kWarning);
}

TEST(Nonfinite, ALossIsCriticalWhateverTheOptimizer) {
  Watched w;
  w.play(20, 24, [](StepRecord& r) {
    for (WorkerRecord& x : r.workers) x.optimizer_step = 0;
    r.workers[3].loss_nonfinite = r.step == 24;
  });
  ASSERT_EQ(w.ids(), Ids{"nonfinite-loss"});
}

TEST(Nonfinite, ALossIsNamedAndItsGradientComesFirst) {
  Watched loss = played(9, [](StepRecord& r) { r.workers[2].loss_nonfinite = r.step == 4; });
  expect(loss, "nonfinite-loss", {.ranks = {2}});
  Watched both = played(9, [](StepRecord& r) {
    if (r.step != 4) return;
    r.workers[2].loss_nonfinite = true;
    spoil(r.workers[2]);
  });
  expect(both, "nonfinite-gradient", {.also = {"nonfinite-loss"}});
}

// ---- zero

TEST(ZeroGradient, NamesAWorkerAtOnce) {
  Watched w = played(0, [](StepRecord& r) { r.workers[5].grad_norm = 0; });
  expect(w, "zero-gradient", {.ranks = {5}});
}

TEST(ZeroGradient, AllZeroTakesThreeStepsInARow) {
  const auto zero = [](StepRecord& r) {
    for (WorkerRecord& x : r.workers) {
      x.grad_norm = 0;
      x.fingerprint = 0;
    }
  };
  Watched w = played(1, zero);
  w.play(2, 2);
  w.play(3, 4, zero);
  EXPECT_TRUE(w.findings().empty());
  w.play(5, 5, zero);
  expect(w, "zero-gradient", {.count = 8, .first_step = 3});
}

TEST(ZeroGradient, WithALossOfZeroThereIsNothingLeftToLearnOrNothingAtAll) {
  const auto severity = [](std::uint64_t from) {
    Watched w = played(20, [&](WorkerRecord& x, StepRecord& r) {
      if (r.step >= from) x.grad_norm = x.loss = 0;
    });
    EXPECT_EQ(w.ids(), Ids{"zero-gradient"});
    return w.first().severity;
  };
  EXPECT_EQ(severity(10), Severity::kInfo) << "a margin that is met";
  EXPECT_EQ(severity(0), Severity::kCritical);
}

TEST(ZeroGradient, OfOneWorkerWithNothingToLearnIsAFaultWhereItLasts) {
  const auto found = [](std::uint64_t steps) {
    Watched w = played(steps, [](StepRecord& r) {
      if (r.step < 3) return;
      r.workers[1].grad_norm = r.workers[1].loss = 0;
    });
    return w.first();
  };
  EXPECT_EQ(found(9).severity, Severity::kInfo) << "a batch without targets, or a few";
  EXPECT_EQ(found(30).severity, Severity::kWarning);
  EXPECT_EQ(found(30).ranks, RankList{1});
  EXPECT_EQ(found(30).first_step, 3U);
}

TEST(ZeroGradient, OfAMarginThatIsMetHereAndThereIsNone) {
  const Break margins[] = {[](StepRecord& r) {  // ranks take turns
                             WorkerRecord& w = r.workers[1 + r.step / 9 % 2];
                             w.grad_norm = w.loss = 0;
                           },
                           [](StepRecord& r) {  // once something is learned
                             if (r.step < 3) return;
                             r.loss_mean /= 100;
                             r.workers[1].grad_norm = r.workers[1].loss = 0;
                           }};
  for (const Break& met : margins) EXPECT_EQ(played(60, met).first().severity, Severity::kInfo);
}

TEST(ZeroGradient, IsNotPossibleWhereNothingWasRead) {
  Watched w = played(9, [](WorkerRecord& x) { x.grad_norm = kNaN; });
  EXPECT_EQ(w.check("zero-gradient").state, CheckRecord::State::kNotPossible);
  EXPECT_TRUE(w.findings().empty());
}

void keep_share(StepRecord& record, std::size_t worker, double not_zero) {
  set(record.workers[worker], FingerprintKind::kZeroShare, 1 - not_zero);
}

TEST(VanishedElements, AreTheShareAgainstTheRunsOwnStart) {
  const auto play = [](double before, double after, std::uint64_t last) {
    return played(last, [&](StepRecord& r) {
      for (std::size_t i = 0; i < r.workers.size(); ++i) {
        keep_share(r, i, r.step < 3 ? 0.001 : r.step < 40 ? before : after);
      }
    });
  };
  auto w = play(0.9, 0.2, 60);
  expect(w, "zero-gradient", {.count = 8, .severity = Severity::kWarning, .first_step = 40});
  EXPECT_NEAR(number_of(w.first(), "not_zero_share"), 0.2, 1e-12);
  EXPECT_NEAR(number_of(w.first(), "not_zero_at_start_share"), 0.9, 1e-12);
  EXPECT_TRUE(play(0.9, 0.2, 48).findings().empty()) << "nine steps";
  EXPECT_TRUE(play(0.9, 0.25, 60).findings().empty()) << "a quarter is left";
  EXPECT_TRUE(play(0.005, 0.0001, 60).findings().empty()) << "few were there ever";
}

TEST(VanishedElements, OfSomeWorkersAreLeftToStatistics) {
  expect_quiet(played(60, [](StepRecord& r) {
    for (std::size_t i = 0; i < 7; ++i) keep_share(r, i, r.step < 40 ? 0.5 : 0.01);
  }));
}

TEST(VanishedElements, MayVaryAndBeGoneForAWhile) {
  expect_quiet(played(100, [](StepRecord& r) {
    const bool short_of = r.step > 40 && r.step % 10 != 0;
    for (std::size_t i = 0; i < r.workers.size(); ++i) keep_share(r, i, short_of ? 0.05 : 0.5);
  }));
}

// ---- below fp16

Ids below_fp16(double share, std::uint64_t last, double loss = 2) {
  Watched w = played(last, [&](StepRecord& r) {
    if (r.step > 0) r.loss_mean = loss;
    if (r.step > 2 && r.step % 10 != 0) return;
    for (WorkerRecord& x : r.workers) set(x, Kind::kBelowFp16, share);
  });
  if (!w.findings().empty()) {
    EXPECT_EQ(w.first().severity, Severity::kWarning);
    EXPECT_EQ(w.first().ranks.size(), 8U);
    EXPECT_EQ(w.first().first_step, 0U);
  }
  return w.ids();
}

TEST(BelowFp16, IsSeenFromTheFirstStepOn) {
  EXPECT_TRUE(below_fp16(0.97, 1).empty()) << "two samples";
  EXPECT_EQ(below_fp16(0.97, 2), Ids{"zero-gradient"});
  EXPECT_EQ(below_fp16(0.97, 60), Ids{"zero-gradient"});
  EXPECT_TRUE(below_fp16(0.4, 60).empty());
  EXPECT_TRUE(below_fp16(0.97, 60, 0.01).empty()) << "there is nothing left to learn";
}

// ---- frozen

TEST(FrozenGradient, TwoEqualOnesAreEnough) {
  Watched w = played(5);
  w.play(6, 6,
         [&](StepRecord& r) { r.workers[4].fingerprint = w.run.step(5).workers[4].fingerprint; });
  expect(w, "frozen-gradient", {.ranks = {4}, .first_step = 6});
  EXPECT_EQ(text_of(w.first(), "data_changed"), "yes");
}

TEST(FrozenGradient, WithoutFingerprintsAMinorityIsNamed) {
  const auto frozen = [](std::size_t count) {
    Watched w = played(5, [&](StepRecord& r) {
      drop_fingerprints(r);
      for (std::size_t i = 0; i < count; ++i) r.workers[i].fingerprint = 100 + i;
    });
    return w.ids();
  };
  EXPECT_EQ(frozen(1), Ids{"frozen-gradient"});
  EXPECT_EQ(frozen(4), Ids{"frozen-gradient"});
  EXPECT_TRUE(frozen(5).empty()) << "a static batch and no optimizer step look the same";
}

TEST(FrozenGradient, TheSameBatchWithoutAnOptimizerStepIsNoFault) {
  Watched w;
  const StepRecord same = w.run.step(0);
  w.play(0, 9, [&](StepRecord& r) {
    const std::uint64_t step = r.step;
    r = same;
    r.step = step;
    for (WorkerRecord& x : r.workers) {
      set(x, Kind::kDataPass, step);
      set(x, Kind::kSamplerShuffle, 0);
    }
  });
  EXPECT_TRUE(w.findings().empty()) << w.first().title;
}

TEST(FrozenGradient, TheSameBatchCountsWhereOthersMovedOnTheirs) {
  Watched w;
  const StepRecord same = w.run.step(0);
  w.play(0, 4, [&](StepRecord& r) {
    for (std::size_t i = 0; i < r.workers.size(); ++i) {
      HealthyRun::read(r.workers[i], same.workers[i].indices);
      set(r.workers[i], Kind::kDataPass, r.step);
      set(r.workers[i], Kind::kSamplerShuffle, 0);
    }
    r.workers[1].fingerprint = 77;
  });
  expect(w, "frozen-gradient", {.ranks = {1}});
}

TEST(FrozenGradient, ZeroGradientsAreNotFrozen) {
  Watched w = played(5, [](StepRecord& r) {
    r.workers[1].grad_norm = 0;
    r.workers[1].fingerprint = 9;
  });
  EXPECT_EQ(w.ids(), Ids{"zero-gradient"});
  EXPECT_TRUE(w.first().also.empty());
}

}  // namespace
}  // namespace presum::checks
