// SPDX-License-Identifier: Apache-2.0
// no-progress.
#include <gtest/gtest.h>

#include "checks/engine/testing.h"

namespace presum::checks {
namespace {

// One of 25 parts of the model is hashed at each step, with its value at `step`.
void hash(StepRecord& record, std::uint64_t step) {
  const std::uint64_t part = record.step % 25;
  for (WorkerRecord& w : record.workers) {
    for (StateHash& s : w.states) s.value = scramble(step * 8 + s.group + (part << 32));
  }
}

void stands(StepRecord& record) { hash(record, 0); }

TEST(NoProgress, IsSeenWhenTheWholeModelWasHashedTwice) {
  Watched w = played(48, stands);
  EXPECT_TRUE(w.ids().empty());
  w.play(49, 60, stands);
  expect(w, "no-progress",
         {.count = 8, .severity = Severity::kCritical, .first_step = 0, .last_step = 60});
  EXPECT_EQ(number_of(w.first(), "learning_rate"), 1e-3);
}

TEST(NoProgress, OfALaterPartOfTheRunIsDated) {
  Watched w = played(200, [](StepRecord& r) { hash(r, std::min<std::uint64_t>(r.step, 100)); });
  expect(w, "no-progress", {.first_step = 100});
}

TEST(NoProgress, OnePartThatMovesIsProgress) {
  Watched w = played(200, [](StepRecord& r) { hash(r, r.step % 25 == 7 ? r.step : 0); });
  EXPECT_TRUE(w.ids().empty());
  EXPECT_EQ(w.check("no-progress").state, CheckRecord::State::kPassed);
}

TEST(NoProgress, NeedsOptimizerStepsThatShouldChangeSomething) {
  const auto found = [](auto&& healthy) {
    Watched w = played(200, [&](StepRecord& r) {
      hash(r, 0);
      for (WorkerRecord& x : r.workers) healthy(x);
    });
    return w.ids();
  };
  EXPECT_TRUE(found([](WorkerRecord& x) { set(x, Kind::kLearningRate, 0.0); }).empty());
  EXPECT_TRUE(found([](WorkerRecord& x) { x.optimizer_step = 3; }).empty()) << "none is taken";
  EXPECT_EQ(found([](WorkerRecord& x) { x.grad_norm = 0; }), Ids{"zero-gradient"});
  EXPECT_TRUE(found([](WorkerRecord& x) { unset(x, Kind::kLearningRate); }).empty());
}

TEST(NoProgress, WaitsWhileTheRateIsZeroAndCountsFromThere) {
  Watched w;  // a warm-up that begins at zero
  const auto warm = [](StepRecord& r) {
    hash(r, 0);
    for (WorkerRecord& x : r.workers) set(x, Kind::kLearningRate, r.step < 60 ? 0.0 : 1e-3);
  };
  w.play(0, 83, warm);
  EXPECT_TRUE(w.ids().empty());
  w.play(84, 90, warm);
  EXPECT_EQ(w.ids(), Ids{"no-progress"});
}

void with_groups(StepRecord& r, double norm) {
  r.groups.clear();
  for (const StateHash& s : r.workers.front().states) {
    if (s.kind != StateHash::Kind::kParameters) continue;
    r.groups.push_back({.id = s.group});
    r.groups.back().norms.assign(r.workers.size(), static_cast<float>(norm));
  }
}

constexpr const char* kNames = "a, 0000000000000063";  // the name of group 99

// Group 1 of two does not change.
Ids standing_layer(double norm, std::uint64_t steps, std::string* title = nullptr,
                   const std::string& fact = "", const std::string& names = kNames) {
  Watched w;
  if (!fact.empty()) {
    w.hello([&](std::uint32_t) { return WorkerFacts{.facts = {{fact, names}}}; });
  }
  w.play(0, steps, [&](StepRecord& r) {
    hash(r, r.step);
    const std::uint64_t part = r.step % 25;
    for (WorkerRecord& x : r.workers) {
      x.states.push_back({.group = 99, .value = scramble(part)});
    }
    with_groups(r, norm);
  });
  if (title != nullptr && !w.ids().empty()) {
    *title = w.first().title;
    const bool meant = fact == "layers_at_rest" || fact == "layers_without_gradient";
    EXPECT_EQ(w.first().severity, meant ? Severity::kInfo : Severity::kWarning);
  }
  return w.ids();
}

TEST(NoProgress, OneLayerThatStandsStillIsNamed) {
  std::string title;
  EXPECT_EQ(standing_layer(0.5, 80, &title), Ids{"no-progress"});
  EXPECT_NE(title.find("63"), std::string::npos) << title << ": 99 in hexadecimal digits";
  EXPECT_TRUE(standing_layer(0.5, 70).empty()) << "not all of it was hashed twice";
  EXPECT_TRUE(standing_layer(0, 200).empty()) << "a layer without a gradient";
}

// As in a program whose optimizer is its own, in C++ or by hand.
TEST(NoProgress, OneLayerThatStandsStillIsNamedWithoutALearningRate) {
  const auto ids = [](bool others_move, std::uint64_t steps_of_others) {
    Watched w = played(120, [&](StepRecord& r) {
      hash(r, others_move ? r.step : 0);
      for (WorkerRecord& x : r.workers) {
        x.states.push_back({.group = 99, .value = scramble(r.step % 25)});
        unset(x, Kind::kLearningRate);
        if (steps_of_others > 0) set(x, Kind::kStepsOfOthers, steps_of_others);
      }
      with_groups(r, 0.5);
    });
    return w.ids();
  };
  EXPECT_EQ(ids(true, 0), Ids{"no-progress"});
  EXPECT_TRUE(ids(false, 0).empty()) << "the rate may be 0 for all";
  EXPECT_TRUE(ids(true, 1).empty()) << "or for this layer, in an optimizer that is not known";
}

TEST(NoProgress, WhatStandsStillOnOneRankIsNamedWithIt) {
  const auto still_on = [](std::uint32_t rank, bool whole) {
    return played(90, [=](StepRecord& r) {
      hash(r, r.step);
      for (WorkerRecord& x : r.workers) {
        const std::uint64_t at = x.rank == rank ? r.step % 25 : r.step;
        x.states.push_back({.group = 99, .value = scramble(at + 1000)});
        if (whole && x.rank == rank) x.states = {x.states.back()};
      }
      with_groups(r, 0.5);
    });
  };
  const auto found = [](const Watched& w) {
    const auto all = w.findings();
    const auto at = std::ranges::find(all, "no-progress", &Finding::check);
    return at == all.end() ? Finding{} : *at;
  };
  const Finding layer = found(still_on(2, false));
  EXPECT_EQ(layer.ranks, RankList{2});
  EXPECT_EQ(
      layer.title,
      "Rank 2 took optimizer steps that left layer 0000000000000063 as before, though gradients "
      "came there");
  EXPECT_EQ(layer.also, Ids{"parameter-desync"}) << "which it explains";
  EXPECT_EQ(layer.severity, Severity::kCritical);
  const Finding model = found(still_on(3, true));
  EXPECT_EQ(model.ranks, RankList{3});
  EXPECT_EQ(model.title, "Rank 3 took optimizer steps that changed no parameter");
}

TEST(NoProgress, LayersThatNothingIsToMoveAreToldApart) {
  std::string title;
  EXPECT_EQ(standing_layer(0.5, 80, &title, "layers_at_rest"), Ids{"no-progress"});
  EXPECT_NE(title.find("is 0"), std::string::npos) << title;
  EXPECT_EQ(standing_layer(0.5, 80, &title, "layers_of_no_optimizer"), Ids{"no-progress"});
  EXPECT_NE(title.find("no optimizer holds"), std::string::npos) << title;
  EXPECT_EQ(standing_layer(0.5, 80, &title, "layers_without_gradient"), Ids{"no-progress"});
  EXPECT_NE(title.find("took their gradients away"), std::string::npos) << title;
  EXPECT_TRUE(standing_layer(0.5, 200, nullptr, "layers_of_one_element").empty());
  EXPECT_TRUE(standing_layer(0.5, 200, nullptr, "layers_at_rest", "a, b... (2000 bytes)").empty())
      << "a list that was cut";
}

TEST(NoProgress, UpdatesThatRoundToNothingAreNamed) {
  const auto found = [](double share, std::uint64_t every) {
    Watched w = played(40, [&](StepRecord& r) {
      hash(r, r.step);
      if (r.step % every != 0) return;
      for (WorkerRecord& x : r.workers) set(x, Kind::kUnchangedShare, share);
    });
    return w.ids();
  };
  EXPECT_EQ(found(0.97, 10), Ids{"no-progress"});
  EXPECT_TRUE(found(0.97, 30).empty()) << "two samples";
  EXPECT_TRUE(found(0.2, 10).empty());
}

TEST(NoProgress, UpdatesThatGrowYetAreNone) {
  // a warm-up
  expect_quiet(played(120, [&](StepRecord& r) {
    hash(r, r.step);
    for (WorkerRecord& x : r.workers) {
      set(x, Kind::kLearningRate, std::bit_cast<std::uint64_t>(1e-6 * static_cast<double>(r.step)));
      if (r.step % 10 == 0) set(x, Kind::kUnchangedShare, 0.9);
    }
  }));
}

// presum received no optimizer, and ranks report `kind` in each step.
void without_optimizer(StepRecord& r, Kind kind, std::uint64_t steps) {
  for (WorkerRecord& x : r.workers) {
    x.optimizer_step = 0;
    unset(x, Kind::kLearningRate);
    if (steps > 0) set(x, kind, steps);
  }
}

TEST(NoProgress, StepsOfOptimizersThatPresumWasNotGivenCount) {
  Watched w = played(60, [](StepRecord& r) {
    stands(r);
    without_optimizer(r, Kind::kStepsOfOthers, 1);
  });
  expect(w, "no-progress", {.severity = Severity::kCritical});
  EXPECT_EQ(number_of(w.first(), "steps_without_change"), 37);
}

TEST(NoProgress, OptimizersThatStepNowAndThenAreFollowed) {
  Watched w;  // every fourth record, as if micro-batches were reduced one by one
  const auto some = [](StepRecord& r) {
    stands(r);
    for (WorkerRecord& x : r.workers) x.optimizer_step = r.step / 4;
  };
  w.play(0, 100, some);
  EXPECT_TRUE(w.ids().empty()) << "20 steps: a loss scaler may have left them out";
  w.play(101, 140, some);
  EXPECT_EQ(w.ids(), Ids{"no-progress"});
  // every hundredth
  expect_quiet(played(400, [](StepRecord& r) {
    hash(r, r.step / 100 * 100);
    for (WorkerRecord& x : r.workers) x.optimizer_step = r.step / 100;
  }));
}

TEST(NoProgress, AnOptimizerThatHoldsNothingIsNamedAtOnce) {
  Watched w = played(0, stands);
  w.play(1, 1, [](StepRecord& r) {
    stands(r);
    without_optimizer(r, Kind::kStepsInVain, 1);
  });
  expect(w, "no-progress",
         {.count = 8,
          .severity = Severity::kCritical,
          .title = "holds none of this model's parameters"});
}

TEST(NoProgress, TheCauseThatIsKnownStaysInTheTitle) {
  Watched w = played(80, [](StepRecord& r) {
    stands(r);
    without_optimizer(r, Kind::kStepsOfOthers, 1);
    if (r.step == 1) without_optimizer(r, Kind::kStepsInVain, 1);
  });
  expect(w, "no-progress", {.first_step = 0, .title = "holds none of this model's parameters"});
}

TEST(NoProgress, PassesOnlyWhereParametersWereSeenToChange) {
  const auto state = [](std::uint64_t last, auto&& spoil) {
    Watched w = played(last, spoil);
    return w.check("no-progress").state;
  };
  using State = CheckRecord::State;
  const auto moves = [](StepRecord& r) { hash(r, r.step); };
  EXPECT_EQ(state(20, moves), State::kNotTriggered) << "no part was hashed twice";
  EXPECT_EQ(state(30, moves), State::kPassed);
  EXPECT_EQ(state(40, stands), State::kNotTriggered) << "nothing has changed, and it is early";
  const auto by_hand = [](bool changes) {
    return [changes](StepRecord& r) {
      hash(r, changes ? r.step : 0);
      without_optimizer(r, Kind::kStepsOfOthers, 0);
    };
  };
  EXPECT_EQ(state(40, by_hand(true)), State::kPassed);
  EXPECT_EQ(state(200, by_hand(false)), State::kNotPossible);
  EXPECT_EQ(state(40, drop_fingerprints), State::kNotPossible);
  const auto parts_after_all = [](StepRecord& r) {  // as ranks hash them; the rate is 0
    hash(r, r.step == 0 ? 99 : 100 + r.step % 25);
    without_optimizer(r, Kind::kStepsOfOthers, 0);
  };
  EXPECT_EQ(state(40, parts_after_all), State::kNotPossible);
}

TEST(NoProgress, OneWorkerIsEnough) {
  Watched w = played({.workers = 1}, 60, stands);
  EXPECT_EQ(w.ids(), Ids{"no-progress"});
}

}  // namespace
}  // namespace presum::checks
