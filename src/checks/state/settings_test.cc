// SPDX-License-Identifier: Apache-2.0
// optimizer-mismatch, mode-mismatch, environment-mismatch, sampler-mismatch.
#include <gtest/gtest.h>

#include <chrono>

#include "checks/engine/testing.h"

namespace presum::checks {
namespace {

using State = CheckRecord::State;

// The values by rank of a differing setting; empty if there are none.
std::string held(const Finding& finding, const char* name) {
  return value_in(finding, "values").value(name, "");
}

WorkerFacts facts_of(std::uint32_t rank, std::vector<std::pair<std::string, std::string>> more) {
  WorkerFacts facts{rank < 4 ? "a" : "b", {{"torch", "2.13.0"}, {"python", "3.11.2"}}, {}};
  facts.facts.emplace_back("pid", std::to_string(1000 + rank));
  facts.facts.emplace_back("device", "cuda:" + std::to_string(rank));
  facts.facts.insert(facts.facts.end(), more.begin(), more.end());
  return facts;
}

TEST(Settings, OfOneRankAloneAreNamedWithTheirValues) {
  struct Row {
    Kind kind;
    std::uint64_t value;
    const char* check;
    const char* evidence;
    const char* values;
    Severity severity;
  };
  const Row rows[] = {
      {Kind::kLearningRate, std::bit_cast<std::uint64_t>(2e-3), "optimizer-mismatch",
       "learning_rate", "0-2,4-7: 0.001; 3: 0.002", Severity::kCritical},
      {Kind::kMode, 0, "mode-mismatch", "mode", "0-2,4-7: 1; 3: 0", Severity::kWarning},
      {Kind::kDeterminism, 1, "environment-mismatch", "determinism", "0-2,4-7: 0; 3: 1",
       Severity::kWarning},
      {Kind::kSamplerSeed, 43, "sampler-mismatch", "sampler_seed", "0-2,4-7: 42; 3: 43",
       Severity::kWarning},
      {Kind::kDataAttributes, 1, "dataset-mismatch", "data_attributes", "0-2,4-7: 2679; 3: 1",
       Severity::kWarning},
  };
  for (const Row& row : rows) {
    Watched w = played(9, [&](StepRecord& r) {
      if (r.step >= 4) set(r.workers[3], row.kind, row.value);
    });
    expect(w, row.check, {.ranks = {3}, .severity = row.severity, .first_step = 4, .last_step = 9});
    EXPECT_EQ(held(w.first(), row.evidence), row.values);
  }
}

// A run whose ranks send `more` facts.
template <class More>
Watched told(const More& more, std::uint64_t last, const Break& broken = nothing,
             RunOptions options = {}) {
  Watched out(options);
  out.hello([&](std::uint32_t rank) { return facts_of(rank, more(rank)); });
  out.play(0, last, broken);
  return out;
}
using Facts = std::vector<std::pair<std::string, std::string>>;

TEST(Optimizer, AScheduleAsLongAsUnevenDataNamesTheData) {
  Watched w = played(3, [](StepRecord& r) {
    set(r.workers[3], Kind::kSamplerLength, 60);
    set(r.workers[3], Kind::kOptimizerSettings, 9);
    set(r.workers[3], Kind::kLearningRate, 2e-3);
  });
  const Finding f = w.first();
  EXPECT_EQ(f.check, "optimizer-mismatch");
  EXPECT_EQ(f.title, "Rank 3 had another learning rate, and another number of batches");
  EXPECT_EQ(text_of(f, "data_lengths"), "0-2,4-7: 512; 3: 60");
  EXPECT_NE(f.remedy.find("join()"), std::string::npos);
}

TEST(Optimizer, AScheduleThatAllFollowIsFine) {
  expect_quiet(played(9, [](WorkerRecord& x, StepRecord& r) {
    set(x, Kind::kOptimizerSettings, r.step);
    set(x, Kind::kLearningRate, 1e-3 * static_cast<double>(r.step));
  }));
}

TEST(Optimizer, SaysEachWordOnceAndNamesTheClass) {
  const auto name = [](std::uint32_t r) { return Facts{{"optimizer", r == 7 ? "SGD" : "AdamW"}}; };
  const Watched w = told(name, 1, [](StepRecord& r) {
    set(r.workers[7], Kind::kOptimizerClass, 0x56D);
    set(r.workers[7], Kind::kOptimizerSettings, 0xBAD);
    set(r.workers[7], Kind::kLearningRate, 2e-3);
  });
  EXPECT_EQ(w.first().title, "Rank 7 had another optimizer: class and learning rate");
  EXPECT_EQ(held(w.first(), "optimizer_class"), "0-6: AdamW; 7: SGD");
  Watched unnamed =
      played(0, [](StepRecord& r) { set(r.workers[7], Kind::kOptimizerClass, 0x56D); });
  EXPECT_EQ(held(unnamed.first(), "optimizer_class"), "0-6: 2778; 7: 1389");
}

TEST(Optimizer, SettingsAreNamedByWhatWorkersToldOfThem) {
  const Watched w = told(
      [](std::uint32_t r) {
        return Facts{{"optimizer.betas", r == 2 ? "(0.5, 0.9)" : "(0.9, 0.999)"}};
      },
      3, [](StepRecord& r) { set(r.workers[2], Kind::kOptimizerSettings, 9); });
  expect(w, "optimizer-mismatch", {.title = "betas"});
  EXPECT_EQ(w.first().title.find("settings"), std::string::npos) << w.first().title;
  EXPECT_NE(held(w.first(), "betas").find("2: (0.5, 0.9)"), std::string::npos);
}

TEST(Optimizer, LossScalesOfTheirOwnAreNamedWithTheRanks) {
  const auto scaled = [](bool reduced) {
    return played(4, [=](WorkerRecord& x) {
      set(x, Kind::kLossScale, x.rank == 1 ? 512.0 : 1024.0);
      x.reduced_norm /= x.rank == 1 ? 512.0 : 1024.0;
      if (!reduced) x.number.window = 0;
    });
  };
  expect(scaled(true), "optimizer-mismatch",
         {.ranks = {1},
          .severity = Severity::kCritical,
          .title = "Rank 1 had another loss scale than the others",
          .remedy = "found_inf"});
  EXPECT_EQ(held(scaled(true).first(), "loss_scale"), "0,2-7: 1024; 1: 512");
  EXPECT_EQ(scaled(true).check("reduction-scale").state, CheckRecord::State::kNotPossible);
  EXPECT_EQ(scaled(false).ids(), Ids{"no-reduction"}) << "scales of steps of their own";
}

TEST(Optimizer, RatesThatPartOneAfterTheOtherAreOneFinding) {
  Watched w = played(40, [](WorkerRecord& x, StepRecord& r) {
    if (r.step >= 5 * (x.rank + 1)) set(x, Kind::kLearningRate, 5e-4);
  });
  EXPECT_EQ(w.ids(), Ids{"optimizer-mismatch"});
}

TEST(Settings, WhereNobodyIsTheMinorityTheRanksDiffer) {
  const auto title = [](Kind kind) {
    Watched w = played({.workers = 2}, 0, [&](StepRecord& r) { set(r.workers[1], kind, 0xBAD); });
    return w.first().title;
  };
  EXPECT_EQ(title(Kind::kLearningRate), "The ranks differ in their optimizer: learning rate");
  EXPECT_EQ(title(Kind::kModes), "The ranks differ in their mode: training or evaluation");
  EXPECT_EQ(title(Kind::kDtype),
            "The ranks compute in different ways: dtype of parameters or autocast");
  EXPECT_EQ(title(Kind::kDataAttributes), "The ranks differ in their dataset: data attributes");
  EXPECT_EQ(title(Kind::kSamplerSeed), "Both ranks had samplers that do not fit together: seed");
}

TEST(Mode, SaysEachWordOnce) {
  Watched w = played(0, [](StepRecord& r) {
    for (const Kind kind : {Kind::kMode, Kind::kModes, Kind::kDropouts}) {
      set(r.workers[1], kind, 0);
    }
    set(r.workers[1], Kind::kDropout, 0.5);
  });
  EXPECT_EQ(w.first().title, "Rank 1 ran in another mode: training or evaluation and dropout");
  EXPECT_EQ(value_in(w.first(), "differ"), (Ids{"training or evaluation", "dropout"}));
}

TEST(Settings, AWorkerThatSentNothingIsNotJudged) {
  expect_quiet(played(9, [](StepRecord& r) {
    r.workers[3].fingerprints.clear();
    r.workers[3].samples.hashes.clear();
    r.workers[3].indices.clear();
  }));
}

TEST(Settings, AreNotPossibleWithoutFingerprints) {
  const Watched off = played(9, drop_fingerprints);
  for (const char* id : {"optimizer-mismatch", "mode-mismatch", "sampler-mismatch",
                         "parameter-desync", "buffer-desync"}) {
    EXPECT_EQ(off.check(id).state, State::kNotPossible) << id;
  }
}

// ---- environment

TEST(Environment, FactsThatMayDifferDo) {
  const Watched w = told([](std::uint32_t) { return Facts{}; }, 9);
  expect_quiet(w);
  EXPECT_EQ(w.check("environment-mismatch").state, State::kPassed);
}

TEST(Environment, AutocastThatOneRankEntersInsideItsForwardPassIsNamed) {
  Watched w;
  w.hello([](std::uint32_t r) {
    const char* inside = r == 1 ? "autocast to bfloat16" : "no autocast";
    return facts_of(r, {{"forward_precision", inside + std::string(", float32 parameters")}});
  });
  w.play(0, 9, [](StepRecord& r) {
    if (r.step % 5 == 1) set(r.workers[1], Kind::kForwardPrecision, 0xB16);
  });
  expect(w, "environment-mismatch", {.severity = Severity::kWarning, .first_step = 1});
  EXPECT_EQ(w.first().title, "Rank 1 computed in another way: precision inside the forward pass");
  EXPECT_EQ(held(w.first(), "forward_precision"),
            "0,2-7: no autocast, float32 parameters; 1: autocast to bfloat16, float32 parameters");
  Watched around = played(9, [](StepRecord& r) {
    set(r.workers[1], Kind::kDtype, 0xB16);
    if (r.step % 5 == 1) set(r.workers[1], Kind::kForwardPrecision, 0xB16);
  });
  EXPECT_EQ(around.first().title,
            "Rank 1 computed in another way: dtype of parameters or autocast");
}

TEST(Environment, HasNotPassedWherePrecisionInsideTheForwardPassIsNotSeen) {
  const auto inside = [](const char* why) {
    Watched w;
    w.hello([&](std::uint32_t r) { return facts_of(r, {{"forward_unseen", why}}); });
    w.play(0, 30, [](WorkerRecord& x) { unset(x, Kind::kForwardPrecision); });
    EXPECT_TRUE(w.findings().empty());
    EXPECT_EQ(w.check("environment-mismatch").state, State::kNotPossible);
    return w.check("environment-mismatch").reason;
  };
  EXPECT_TRUE(inside("torch compiles code of this process").starts_with("torch compiles"));
  EXPECT_TRUE(inside("no layer of the model is called as a module").starts_with("No layer"));
  Watched first = played(0);
  EXPECT_EQ(first.check("environment-mismatch").state, State::kNotTriggered);
  first.play(1, 1);
  EXPECT_EQ(first.check("environment-mismatch").state, State::kPassed);
}

TEST(Environment, AVersionThatChangesNumbersIsAWarning) {
  const auto torch = [](std::uint32_t r) { return Facts{{"torch", r == 1 ? "2.12.0" : "2.13.0"}}; };
  const Watched w = told(torch, 9);
  expect(w, "environment-mismatch", {.ranks = {1}, .severity = Severity::kWarning});
  EXPECT_EQ(w.first().hosts, Ids{"a"});
  EXPECT_EQ(held(w.first(), "torch"), "0,2-7: 2.13.0; 1: 2.12.0");
  const Watched two = told(torch, 1, nothing, {.workers = 2});
  EXPECT_EQ(two.first().title, "The ranks differ in their environment: torch");
}

TEST(Environment, HarmlessKeysAreInformation) {
  Watched w;
  for (std::uint32_t r = 0; r < 8; ++r) {
    auto facts = facts_of(r, {{"python", r == 6 ? "3.11.3" : "3.11.2"}});
    if (r == 2) facts.facts.emplace_back("env.OMP_NUM_THREADS", "4");
    w.diagnoser.hello(who(r, r), facts);
  }
  w.play(0, 9);
  expect(w, "environment-mismatch", {.ranks = {2, 6}, .severity = Severity::kInfo});
  EXPECT_EQ(held(w.first(), "env.OMP_NUM_THREADS"), "0-1,3-7: unset; 2: 4");
}

TEST(Environment, AHelloThatIsRepeatedReplacesItsFacts) {
  Watched w;
  w.hello([&](std::uint32_t r) { return facts_of(r, {{"sampler", "A"}}); });
  w.play(0, 3);
  w.diagnoser.hello(who(2, 2), facts_of(2, {{"torch", "2.12.0"}}));
  w.play(4, 5);
  expect(w, "environment-mismatch", {.first_step = 4});
  w.diagnoser.hello(who(2, 2), facts_of(2, {}));
  w.play(6, 9);
  EXPECT_EQ(w.first().last_step, 5U) << "mended, and still told";
}

TEST(Environment, ShowsAtMost32FactsAndCountsTheRest) {
  Watched w;
  WorkerFacts hostile = facts_of(1, {});
  for (int k = 0; k < 1000; ++k) hostile.facts.emplace_back("env.KEY" + std::to_string(k), "x");
  w.diagnoser.hello(who(0, 0), facts_of(0, {}));
  w.diagnoser.hello(who(2, 2), facts_of(2, {}));
  w.diagnoser.hello(who(1, 1), hostile);
  w.play(0, 1);
  expect(w, "environment-mismatch", {.ranks = {1}});
  EXPECT_EQ(value_in(w.first(), "values").size(), 32U);
  EXPECT_EQ(number_of(w.first(), "more_facts"), 968);
  EXPECT_TRUE(w.first().title.ends_with(" and 968 more")) << w.first().title;
}

// Looking at every fact of every rank for each rank took minutes.
TEST(Environment, ManyHellosCostNoMoreThanTheirSteps) {
  const auto begin = std::chrono::steady_clock::now();
  Watched w({.workers = 2});
  for (std::uint32_t rank = 0; rank < 200; ++rank) {
    WorkerFacts hostile = facts_of(rank, {});
    for (std::uint32_t k = 0; k < 900; ++k) {
      hostile.facts.emplace_back("env." + std::to_string(rank * 900 + k), "x");
    }
    w.diagnoser.hello(who(rank, rank), hostile);
    w.play(rank, rank);
  }
  w.play(200, 300);
  ASSERT_FALSE(w.findings().empty());
  EXPECT_TRUE(w.first().title.ends_with(" and 179968 more")) << w.first().title;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(Environment, LongHostileValuesAreShortened) {
  const Watched w = told(
      [](std::uint32_t r) {
        return Facts{{"model", std::string(100000, r == 0 ? '{' : '}')}};
      },
      1);
  EXPECT_LT(held(w.first(), "model").size(), 200U);
}

TEST(Settings, EvaluationInTrainingModeMovesBatchNormOfARank) {
  const auto play = [](std::uint64_t more, std::uint64_t at) {
    Watched w = played(30, [&](StepRecord& r) {
      for (WorkerRecord& x : r.workers)
        set(x, Kind::kNormBatches, r.step + (r.step > at ? more : 0));
      if (r.step == at) set(r.workers[0], Kind::kNormBatches, r.step + more);  // then a broadcast
    });
    return w.findings();
  };
  ASSERT_EQ(play(10, 20).size(), 1U);
  const Finding found = play(10, 20).front();
  EXPECT_EQ(found.check, "mode-mismatch");
  EXPECT_EQ(found.ranks, RankList{0});
  EXPECT_EQ(found.first_step, 20U);
  EXPECT_EQ(number_of(found, "batches_apart"), 10);
  EXPECT_TRUE(play(2, 20).empty()) << "layers that are left out at random";
  EXPECT_TRUE(play(0, 20).empty());
}

// ---- sampler

TEST(Sampler, OfOtherDataSetsNeedNotFit) {
  const auto apart = [](bool data) {
    return played(3, [=](StepRecord& r) {
      for (WorkerRecord& x : r.workers) {
        set(x, Kind::kSamplerSeed, 42 + x.rank % 2);
        if (data) set(x, Kind::kDataLength, 4096 + 512 * (x.rank % 2));
      }
    });
  };
  EXPECT_EQ(apart(false).ids(), Ids{"sampler-mismatch"});
  const Watched w = apart(true);
  EXPECT_EQ(w.check("sampler-mismatch").state, State::kNotPossible);
  for (const Finding& f : w.findings()) EXPECT_NE(f.check, "sampler-mismatch");
}

TEST(Sampler, EpochsAreComparedWithinAPass) {
  // already one step into its next pass
  expect_quiet(played(9, [](StepRecord& r) {
    set(r.workers[3], Kind::kSamplerEpoch, 1);
    set(r.workers[3], Kind::kDataPass, 1);
  }));
  Watched wrong = played(9, [](StepRecord& r) { set(r.workers[3], Kind::kSamplerEpoch, 7); });
  expect(wrong, "sampler-mismatch", {.ranks = {3}});
}

TEST(Sampler, PlacesMustDifferAndFitTheWorkers) {
  Watched twice = played(0, [](StepRecord& r) { set(r.workers[3], Kind::kSamplerRank, 5); });
  expect(twice, "sampler-mismatch", {.ranks = {3, 5}});
  Watched alone = played(0, [](WorkerRecord& x) {
    set(x, Kind::kSamplerReplicas, 1);
    set(x, Kind::kSamplerRank, 0);
  });
  expect(alone, "sampler-mismatch", {.count = 8});
}

TEST(Sampler, LengthsMayDifferByOne) {
  Watched w = played(0, [](StepRecord& r) { set(r.workers[3], Kind::kSamplerLength, 511); });
  EXPECT_TRUE(w.findings().empty());
  w.play(1, 1, [](StepRecord& r) { set(r.workers[3], Kind::kSamplerLength, 510); });
  EXPECT_EQ(w.ids(), Ids{"sampler-mismatch"});
}

TEST(Sampler, SaysThatNothingDividesTheDataWhereARankHasNoDistributedOne) {
  Watched w = played(0, [](StepRecord& r) {
    unset(r.workers[3], Kind::kSamplerReplicas);
    unset(r.workers[3], Kind::kSamplerRank);
    set(r.workers[3], Kind::kSamplerClass, 0x4A2D);
  });
  ASSERT_EQ(w.ids(), Ids{"sampler-mismatch"});
  EXPECT_EQ(w.first().title, "Rank 3 had a sampler that does not fit the others': class");
  EXPECT_TRUE(w.first().remedy.starts_with("Not every rank's sampler")) << w.first().remedy;
}

// One of two data-parallel groups of a job of four.
TEST(Sampler, MayDivideAmongAllRanksWhereSomeModelIsReducedAmongThem) {
  const auto of_half = [](std::size_t widest, std::uint64_t among) {
    Watched w({.workers = 2});
    w.hello([](std::uint32_t) { return WorkerFacts{.facts = {{"world_size", "4"}}}; });
    w.diagnoser.group(widest);
    w.play(0, 9, [=](WorkerRecord& x) { set(x, Kind::kSamplerReplicas, among); });
    return w;
  };
  const char* title =
      "Ranks 0-1 reduced gradients among 2 ranks, and their samplers divide the data among 4";
  expect(of_half(4, 4), "sampler-mismatch", {.severity = Severity::kInfo, .title = title});
  expect(of_half(2, 4), "sampler-mismatch",
         {.ranks = {0, 1}, .severity = Severity::kWarning, .title = title});
  Watched late = of_half(2, 4);
  late.diagnoser.group(4);
  late.play(10, 10, [](WorkerRecord& x) { set(x, Kind::kSamplerReplicas, 4); });
  EXPECT_EQ(late.first().severity, Severity::kInfo);
  expect(of_half(4, 3), "sampler-mismatch", {.title = "do not fit together: replicas"});
  EXPECT_EQ(of_half(2, 4).check("data-coverage").state, State::kNotPossible);
}

TEST(Sampler, OneThatIsNotDistributedMayHaveItsOwnSeed) {
  Watched w = played(9, [](WorkerRecord& x) {
    unset(x, Kind::kSamplerReplicas);
    unset(x, Kind::kSamplerRank);
    set(x, Kind::kSamplerSeed, x.rank);
  });
  EXPECT_TRUE(w.findings().empty()) << w.first().title;
  EXPECT_EQ(w.check("sampler-mismatch").state, State::kNotPossible);
}

// ---- the loss

Watched with_losses(std::string_view key, std::string_view odd) {
  const auto facts = [&](std::uint32_t r) {
    return Facts{{"loss.functions", "NllLoss, LogSoftmax"},
                 {std::string(key), std::string(r == 1 ? odd : "-100")}};
  };
  return told(facts, 9);
}

TEST(Loss, ASettingThatOneRankHasOtherwiseIsInformation) {
  const Watched w = with_losses("loss.NllLoss.ignore_index", "0");
  expect(w, "loss-mismatch", {.ranks = {1}, .severity = Severity::kInfo});
  EXPECT_EQ(w.first().title, "Rank 1 computed the loss differently: NllLoss.ignore_index");
  EXPECT_EQ(held(w.first(), "NllLoss.ignore_index"), "0,2-7: -100; 1: 0");
  const Watched same = with_losses("loss.NllLoss.ignore_index", "-100");
  expect_quiet(same);
  EXPECT_EQ(same.check("loss-mismatch").state, State::kPassed);
  EXPECT_EQ(played(9).check("loss-mismatch").state, State::kNotTriggered);
}

TEST(Loss, WhatOnlySomeToldIsNotCompared) {
  Watched w;
  for (std::uint32_t r = 0; r < 7; ++r) {
    const char* weight = r == 1 ? "0.2, 0.8" : "none";
    w.diagnoser.hello(who(r, r), facts_of(r, {{"loss.NllLoss.weight", weight}}));
  }
  w.diagnoser.hello(who(7, 7), facts_of(7, {}));
  w.play(0, 9);
  expect_quiet(w);
}

// ---- inputs

TEST(Inputs, TheirFormIsNamedWhereARankHasAnother) {
  const auto facts = [](std::uint32_t r) {
    return Facts{{"input.x", r == 1 ? "float64 in 2 dimensions" : "float32 in 2 dimensions"}};
  };
  const Watched w = told(facts, 9);
  expect(w, "input-mismatch", {.ranks = {1}, .severity = Severity::kInfo});
  EXPECT_EQ(w.first().title, "Rank 1 had different inputs: x");
}

TEST(Inputs, MeansAreToldApartByTheSpreadAndWhatWasDrawn) {
  const auto with_means = [](double odd, double noise, std::uint64_t steps) {
    return played(steps, [=](StepRecord& r) {
      for (WorkerRecord& w : r.workers) {
        const double drawn = noise * std::sin(static_cast<double>(7 * r.step + 3 * w.rank));
        set(w, Kind::kInputMean, (w.rank == 1 ? odd : 0) + drawn);
        set(w, Kind::kInputSpread, 1.0);
      }
    });
  };
  const Watched w = with_means(2, 0.01, 9);
  expect(w, "input-mismatch", {.ranks = {1}, .severity = Severity::kInfo, .first_step = 3});
  EXPECT_EQ(w.first().title, "Rank 1 had different inputs: mean");
  expect_quiet(with_means(0.4, 0.01, 9));
  expect_quiet(with_means(2, 3, 9));
  expect_quiet(with_means(2, 0.01, 2));
  expect_quiet(with_means(NAN, 0.01, 9));
}

TEST(Inputs, ASpreadOfItsOwnIsNamed) {
  const Watched w = played(9, [](StepRecord& r) {
    for (WorkerRecord& x : r.workers) {
      set(x, Kind::kInputMean, 0.0);
      set(x, Kind::kInputSpread, x.rank == 1 ? 0.25 : 1.0 + 0.001 * x.rank);
    }
  });
  expect(w, "input-mismatch", {.ranks = {1}, .severity = Severity::kInfo, .first_step = 3});
}

}  // namespace
}  // namespace presum::checks
