// SPDX-License-Identifier: Apache-2.0
// no-reduction, reduced-gradient-mismatch, reduction-scale.
#include <gtest/gtest.h>

#include <bit>
#include <functional>
#include <limits>

#include "checks/engine/testing.h"

namespace presum::checks {
namespace {

void keep_own(StepRecord& r) {
  for (WorkerRecord& w : r.workers) {
    if (w.reduced_fingerprint != 0) w.reduced_fingerprint = w.fingerprint;
  }
}

void scale(StepRecord& r, double factor) {
  for (WorkerRecord& w : r.workers) w.reduced_norm *= factor;
}

TEST(NoReduction, WorkersThatKeepTheirOwnGradients) {
  for (const std::uint32_t workers : {2U, 8U}) {
    Watched w = played({.workers = workers}, 0, keep_own);
    expect(w, "no-reduction", {.count = workers, .severity = Severity::kCritical});
  }
}

TEST(NoReduction, OfMostRanksItIsSaidHowMany) {
  const Watched w = played(0, [](StepRecord& r) {
    for (WorkerRecord& x : r.workers) {
      if (x.rank < 5) x.reduced_fingerprint = x.fingerprint;
    }
  });
  expect(w, "no-reduction",
         {.count = 8, .title = "5 of 8 ranks kept their own gradients: these were not reduced"});
}

TEST(NoReduction, SaysThatTheWrapperWasGoneAround) {
  Watched w = played(40, [](StepRecord& r) {
    if (r.step < 10) return;
    keep_own(r);
    for (WorkerRecord& x : r.workers) set(x, Kind::kWrapperForward, 0);
  });
  // where the reduced gradient is next read
  expect(w, "no-reduction",
         {.first_step = 25,
          .title = "All 8 ranks kept their own gradients: the forward pass went around the "
                   "data-parallel wrapper, so nothing was reduced"});
  EXPECT_EQ(value_in(w.first(), "ranks_around_wrapper"), (RankList{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(NoReduction, AWrapperThatIsGoneAroundButReducesIsFine) {
  expect_quiet(played(40, [](WorkerRecord& x) { set(x, Kind::kWrapperForward, 0); }));
}

// A gradient is reduced in every other step, and the passes of the steps between add to it.
void add_late(StepRecord& r) {
  for (WorkerRecord& x : r.workers) {
    const bool reduced = r.step % 2 == 0;
    x.use = reduced ? StepUse::kKept : StepUse::kUsed;
    x.micro_batches = reduced ? 3 : 1;
    x.number.window = reduced ? StepNumber::kReduced : 0;
    x.number.unreduced = r.step / 2;
  }
}

constexpr std::uint64_t kInside = 1, kAgain = 2, kForwardsFirst = 3, kAfterGrad = 4;

// Of two ranks that report this order of passes.
Watched in_order(std::uint64_t order, const std::function<void(StepRecord&)>& broken) {
  return played({.workers = 2}, 9, [&](StepRecord& r) {
    broken(r);
    for (WorkerRecord& x : r.workers) set(x, Kind::kBackwardOrder, order);
  });
}

TEST(NoReduction, AMicroBatchThatIsAddedAfterTheReductionIsNamed) {
  const Watched w = played(9, add_late);
  expect(w, "no-reduction",
         {.count = 8,
          .first_step = 1,
          .title = "All 8 ranks added 1 of the 4 micro-batches of a step to the gradient after it "
                   "was reduced",
          .remedy = "last micro-batch"});
}

TEST(NoReduction, AnOrderOfPassesExplainsWhatDdpDoesNotReduce) {
  const Watched again = in_order(kAgain, add_late);
  expect(again, "no-reduction",
         {.count = 2,
          .title = "Both ranks added 1 of the 4 backward passes of a step to the gradient after it "
                   "was reduced: DDP reduces only the first backward pass after a forward",
          .remedy = "call backward() once"});
  expect(in_order(kForwardsFirst, add_late), "no-reduction",
         {.count = 2, .remedy = "after each forward"});
  const Watched inside = in_order(kInside, keep_own);
  expect(inside, "no-reduction",
         {.count = 2,
          .title = "Both ranks kept their own gradients: the backward pass ran inside the model's "
                   "forward, where DDP does not reduce, so nothing was reduced",
          .remedy = "after the model's forward has returned"});
  expect(in_order(kAfterGrad, keep_own), "no-reduction",
         {.count = 2, .remedy = "static_graph=False"});
}

TEST(NoReduction, AnOrderThatCannotExplainItIsLeftOut) {
  expect(in_order(kInside, add_late), "no-reduction", {.remedy = "last micro-batch"});
  expect(in_order(kAgain, keep_own), "no-reduction",
         {.title = "Both ranks kept their own gradients: nothing was reduced"});
  const Watched one_rank = played({.workers = 2}, 9, [](StepRecord& r) {
    add_late(r);
    set(r.workers[0], Kind::kBackwardOrder, kAgain);
  });
  expect(one_rank, "no-reduction", {.remedy = "last micro-batch"});
}

TEST(NoReduction, WhatAllRanksAddAlikeAfterTheReductionIsFine) {
  bool data = false;
  const auto same = [&](StepRecord& r) {
    add_late(r);
    for (WorkerRecord& x : r.workers) {
      if (x.use != StepUse::kUsed) continue;
      x.fingerprint = 7 + r.step;
      if (data) continue;
      x.samples = {};
      x.indices.clear();
      x.tokens = 0;
      x.micro.clear();
    }
  };
  expect_quiet(played({.workers = 2}, 9, same));
  data = true;
  expect(played({.workers = 2}, 9, same), "no-reduction", {.count = 2});
}

// Parameters differ, except right after they are averaged.
Break local_steps(const std::function<bool(std::uint64_t)>& averaged) {
  return [=](StepRecord& r) {
    for (WorkerRecord& w : r.workers) {
      w.number.unreduced = r.step;
      w.number.window = 0;
      if (averaged(r.step)) continue;
      for (StateHash& s : w.states) s.value += w.rank;
    }
  };
}

TEST(NoReduction, IsInformationOnceParametersWereEqualAtThreeEqualDistances) {
  const auto every_four = local_steps([](std::uint64_t step) { return step % 4 == 0; });
  expect(played(11, every_four), "no-reduction", {.severity = Severity::kCritical});
  expect(played(60, every_four), "no-reduction",
         {.count = 8,
          .severity = Severity::kInfo,
          .first_step = 0,
          .last_step = 60,
          .title = "All 8 ranks took optimizer steps of their own and had equal parameters every 4 "
                   "steps"});
  const auto never = local_steps([](std::uint64_t step) { return step == 0; });
  EXPECT_EQ(played(60, never).first().severity, Severity::kCritical);
  const auto now_and_then =
      local_steps([](std::uint64_t step) { return std::has_single_bit(step); });
  EXPECT_EQ(played(60, now_and_then).first().severity, Severity::kCritical);
  const auto rarely = local_steps([](std::uint64_t step) { return step % 50 == 0; });
  EXPECT_EQ(played(200, rarely).first().severity, Severity::kInfo);
  const auto a_part = local_steps([](std::uint64_t step) { return step % 25 != 3; });
  EXPECT_EQ(played(200, a_part).first().severity, Severity::kCritical) << "the rest never moves";
  const auto reduced = [](StepRecord& r) {
    if (r.step % 4 != 0) r.workers[2].states[0].value += 1;
  };
  EXPECT_EQ(played(60, reduced).first().check, "parameter-desync") << "gradients are reduced";
  const auto by_hook = [](StepRecord& r) {
    keep_own(r);
    if (r.step % 5 == 0) return;
    for (WorkerRecord& w : r.workers) {
      for (StateHash& s : w.states) s.value += w.rank;
    }
  };
  EXPECT_EQ(played(60, by_hook).first().severity, Severity::kInfo) << "a hook that keeps all";
  const auto stops = local_steps([](std::uint64_t step) { return step % 4 == 0 && step < 40; });
  const Finding stopped = played(60, stops).first();
  EXPECT_EQ(stopped.severity, Severity::kCritical) << "no average any more";
  EXPECT_EQ(stopped.first_step, 40);
}

// Gradients that are combined under no_sync and all-reduced by the program: parameters show it.
TEST(NoReduction, IsInformationWhereParametersStayEqualOverOwnSteps) {
  const auto by_hand = [](std::uint64_t last, bool equal) {
    return played(last, [=](StepRecord& r) {
      for (WorkerRecord& x : r.workers) {
        x.number = {.window = 0, .unreduced = r.step};
        x.use = StepUse::kUsed;
        x.states = {{1, StateHash::Kind::kParameters, equal ? r.step : 8 * r.step + x.rank}};
      }
      r.distinct_gradients = 8;
    });
  };
  EXPECT_EQ(by_hand(2, true).first().severity, Severity::kCritical);
  const Watched w = by_hand(40, true);
  expect(w, "no-reduction", {.severity = Severity::kInfo, .first_step = 0});
  EXPECT_EQ(number_of(w.first(), "unreduced_steps"), 41);
  EXPECT_EQ(by_hand(40, false).first().severity, Severity::kCritical);
}

TEST(NoReduction, OptimizerStepsOnUnreducedGradientsAreNamedByRank) {
  for (const std::uint64_t most : {6U, 1U}) {  // a constant count is not reported again
    Watched w = played(9, [&](StepRecord& r) {
      if (r.step >= 4) r.workers[2].number.unreduced = std::min(r.step - 3, most);
    });
    expect(w, "no-reduction", {.ranks = {2}, .first_step = 4, .last_step = 3 + most});
    EXPECT_EQ(number_of(w.first(), "unreduced_steps"), most);
  }
}

TEST(NoReduction, AStepThatWasNotReducedIsNamedAtOnce) {
  Watched w = played(5, [](WorkerRecord& x, StepRecord& r) {
    if (r.step >= 4) x.number = {.window = 0, .unreduced = r.step - 4};
  });
  expect(w, "no-reduction", {.first_step = 4});
  EXPECT_EQ(number_of(w.first(), "unreduced_steps"), 2);
}

TEST(NoReduction, ByHandItIsNotKnownWhereNothingIsHandedOver) {
  const auto by_hand = [](std::uint64_t handed_over_from) {
    Watched w;
    w.hello([](std::uint32_t) { return WorkerFacts{.facts = {{"wrapper", "by hand"}}}; });
    w.play(0, 9, [=](WorkerRecord& x, StepRecord& r) {
      const bool reduced = r.step >= handed_over_from && r.step != 8;
      x.number = {.window = reduced ? StepNumber::kReduced : 0,
                  .unreduced = std::min(r.step, handed_over_from) + (r.step > 8 ? 1 : 0)};
    });
    return w;
  };
  expect(by_hand(20), "no-reduction",
         {.count = 8,
          .severity = Severity::kWarning,
          .first_step = 0,
          .title = "is not known",
          .remedy = "monitor.before_reduction"});
  expect(by_hand(0), "no-reduction",
         {.count = 8, .severity = Severity::kCritical, .first_step = 8, .title = "never due"});
}

TEST(ReducedGradient, NamesTheMinority) {
  Watched w = played(0, [](StepRecord& r) { r.workers[6].reduced_fingerprint ^= 2; });
  expect(w, "reduced-gradient-mismatch", {.ranks = {6}});
}

TEST(ReducedGradient, OneWorkerThatKeptItsOwnIsAMismatch) {
  Watched w =
      played(0, [](StepRecord& r) { r.workers[6].reduced_fingerprint = r.workers[6].fingerprint; });
  expect(w, "reduced-gradient-mismatch", {.ranks = {6}});
}

TEST(ReducedGradient, AResultThatIsNotFiniteFromFiniteGradientsWasMadeByTheReduction) {
  Watched w = played(0, [](StepRecord& r) { scale(r, std::numeric_limits<double>::infinity()); });
  expect(w, "reduced-gradient-mismatch", {.title = "the reduction made it"});
  w.play(1, 3, [](WorkerRecord& x) {
    x.nonfinite = 1;
    x.grad_norm = kNaN;
  });
  expect(w, "nonfinite-gradient", {.also = {"reduced-gradient-mismatch"}});
}

TEST(ReducedGradient, IsNotPossibleWhereNobodyReadIt) {
  Watched w;
  w.play(1, 9);
  EXPECT_EQ(w.check("reduced-gradient-mismatch").state, CheckRecord::State::kNotPossible);
  EXPECT_EQ(w.check("no-reduction").state, CheckRecord::State::kPassed) << "by the counts";
  w.play(25, 25);
  EXPECT_EQ(w.check("reduced-gradient-mismatch").state, CheckRecord::State::kPassed);
}

TEST(ReductionScale, NamesTheFactor) {
  for (const double factor : {8.0, 1 / 8.0, 64.0, 0.0}) {
    Watched w = played(0, [&](StepRecord& r) { scale(r, factor); });
    expect(w, "reduction-scale", {.count = 8});
    EXPECT_NEAR(number_of(w.first(), "factor"), factor, 1e-12);
    EXPECT_NE(w.first().title.find(':'), std::string::npos);
  }
}

TEST(ReductionScale, AFactorThatIsNearANumberByChanceHasNoName) {
  Watched w = played(25, [](StepRecord& r) {
    scale(r, 7.2);
    r.mean_norm_error = r.mean_norm * 0.005;
  });
  EXPECT_EQ(w.first().severity, Severity::kWarning);
  EXPECT_EQ(text_of(w.first(), "factor_is"), "");
}

TEST(ReductionScale, AnyOtherFactorMustBeSeenTwice) {
  Watched w = played(24, [](StepRecord& r) { scale(r, 3); });
  EXPECT_TRUE(w.findings().empty());
  w.play(25, 25, [](StepRecord& r) { scale(r, 3); });
  EXPECT_EQ(w.ids(), Ids{"reduction-scale"});
  Watched other = played(24, [](StepRecord& r) { scale(r, 3); });
  other.play(25, 25, [](StepRecord& r) { scale(r, 2); });
  EXPECT_TRUE(other.findings().empty());
}

TEST(ReductionScale, WhatAHookOfTheProgramsMakesIsInformation) {
  const auto by_hook = [](double factor) {
    Watched w;
    w.diagnoser.hello(who(0, 0), {.facts = {{"communication_hook", "sign_votes"}}});
    w.play(0, 26, [=](StepRecord& r) { scale(r, factor); });
    return w.first();
  };
  EXPECT_EQ(by_hook(3).severity, Severity::kInfo);
  EXPECT_NE(by_hook(3).remedy.find("sign_votes"), std::string::npos) << by_hook(3).remedy;
  EXPECT_EQ(by_hook(8).severity, Severity::kCritical) << "it has left out the division";
  EXPECT_EQ(by_hook(7.4).severity, Severity::kCritical) << "and the hook takes some of the norm";
  Watched w;
  w.diagnoser.hello(who(0, 0), {.facts = {{"communication_hook", "top_k"}}});
  w.play(0, 60, [](StepRecord& r) { scale(r, 5 + static_cast<double>(r.step) / 8); });
  EXPECT_EQ(w.first().severity, Severity::kInfo) << "8 times once, on its way";
}

TEST(ReductionScale, LeavesRoundingAndUncertaintyAlone) {
  expect_quiet(played(100, [](StepRecord& r) { scale(r, 1.09); }));
  expect_quiet(played(100, [](StepRecord& r) {
    scale(r, 8);
    r.mean_norm_error = r.mean_norm * 2;
  }));
}

TEST(ReductionScale, IsNotJudgedWithAWorkerMissingOrWithoutSketches) {
  Watched missing = played(0, [](StepRecord& r) {
    scale(r, 8);
    r.workers.pop_back();
    --r.workers_seen;
    r.missing_replicas = {7};
  });
  EXPECT_EQ(missing.ids(), Ids{"missing-rank"});
  Watched blind = played(0, [](StepRecord& r) {
    scale(r, 8);
    r.mean_norm = r.mean_norm_error = kNaN;
  });
  EXPECT_TRUE(blind.findings().empty());
  EXPECT_EQ(blind.check("reduction-scale").state, CheckRecord::State::kNotPossible);
}

}  // namespace
}  // namespace presum::checks
