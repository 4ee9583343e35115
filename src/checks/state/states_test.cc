// SPDX-License-Identifier: Apache-2.0
// parameter-desync, buffer-desync, state-desync.
#include <gtest/gtest.h>

#include <cmath>

#include "checks/engine/testing.h"

namespace presum::checks {
namespace {

constexpr auto kParameters = StateHash::Kind::kParameters;

TEST(States, NamesTheMinorityAndTheGroups) {
  Watched w;
  w.diagnoser.hello(who(3, 3), {"h", {}, {{1, 0, "model.layers.0"}, {2, 0, "model.layers.1"}}});
  w.play(0, 9, [](StepRecord& r) {
    if (r.step >= 4) r.workers[3].states[2].value ^= 1;
  });
  expect(w, "parameter-desync", {.ranks = {3}, .first_step = 4});
  EXPECT_EQ(text_of(w.first(), "groups"), "model.layers.1");
  EXPECT_EQ(number_of(w.first(), "distinct_copies"), 2);
}

TEST(States, OneLayerOfOneRankHasASuspect) {
  const auto suspects = [](std::size_t groups, std::uint32_t ranks) {
    Watched w = played(9, [&](WorkerRecord& x) {
      for (std::size_t i = 0; i < groups; ++i) x.states[2 * i].value += x.rank < ranks;
    });
    EXPECT_EQ(w.ids(), Ids{"parameter-desync"});
    return w.first().suspects;
  };
  EXPECT_EQ(suspects(1, 1),
            "that layer was written to, or not updated, on this rank alone, or its memory changed");
  EXPECT_EQ(suspects(2, 1), "") << "two layers";
  EXPECT_EQ(suspects(1, 2), "") << "two ranks";
}

TEST(States, SaysWhenTheSamePartWasHashedBefore) {
  const auto equal_until = [](std::uint64_t from, std::uint64_t first, std::uint64_t last) {
    Watched w;
    w.play(first, last, [&](StepRecord& r) {
      if (r.step >= from) r.workers[3].states[2].value ^= 1;
    });
    EXPECT_EQ(w.ids(), Ids{"parameter-desync"});
    return w.first().equal_until;
  };
  EXPECT_EQ(equal_until(53, 0, 90), 28);
  EXPECT_EQ(equal_until(7, 0, 30), 0) << "when all of it was";
  EXPECT_EQ(equal_until(7, 3, 20), std::nullopt) << "only a part of the model was hashed";
  EXPECT_EQ(equal_until(0, 0, 30), std::nullopt);
}

Watched outside(std::uint64_t since) {
  Watched w;
  w.diagnoser.hello(who(0, 0), {"h", {}, {{9, 0, "parameter 6 (4x16)"}}});
  w.play(0, 3, [=](StepRecord& r) {
    for (WorkerRecord& x : r.workers) {
      x.states.push_back({9, StateHash::Kind::kOutside, r.step < since ? 7U : x.rank});
    }
  });
  return w;
}

TEST(States, ParametersThatNoReductionTakesAreNamedOnceTheyDiffer) {
  const Watched w = outside(1);
  expect(
      w, "no-reduction",
      {.count = 8,
       .severity = Severity::kCritical,
       .first_step = 1,
       .title = "All 8 ranks held different parameter 6 (4x16), trained outside of every watched "
                "reduction",
       .remedy = "wrap them too"});
  EXPECT_EQ(text_of(w.first(), "groups"), "parameter 6 (4x16)");
  expect_quiet(outside(0));  // separate shards on each rank
}

TEST(States, ModelsThatAllDifferAreEveryonesFault) {
  Watched w = played(0, [](WorkerRecord& x) { x.states[0].value += x.rank; });
  expect(w, "parameter-desync", {.count = 8});
  EXPECT_EQ(w.first().title, "All 8 ranks held different parameters");
}

TEST(States, CopiesThatSomeShareAreCounted) {
  Watched w = played(0, [](WorkerRecord& x) { x.states[0].value += x.rank / 4; });
  EXPECT_EQ(w.first().title,
            "All 8 ranks held 2 different copies of their parameters (alike: ranks "
            "0-3; 4-7)");
  EXPECT_EQ(text_of(w.first(), "copies_alike"), "0-3; 4-7");
}

// Each rank's own noise for the forward pass, undone before the optimizer step.
TEST(States, ParametersThatAreAlikeWhereTheOptimizerLeftThemAreInSync) {
  const auto noisy = [](std::uint32_t apart, bool all_told, std::uint64_t last = 9) {
    return played(last, [=](StepRecord& r) {
      for (WorkerRecord& w : r.workers) {
        for (StateHash& s : w.states) {
          if (s.kind == StateHash::Kind::kParameters) s.value += w.rank;
        }
        if (r.step > 0 && (all_told || w.rank > 0)) {
          set(w, Kind::kAsStepped, r.step + (w.rank == apart ? 1000 : 0));
        }
      }
    });
  };
  expect_quiet(noisy(99, true));
  EXPECT_EQ(noisy(99, true).check("parameter-desync").state, CheckRecord::State::kNotTriggered)
      << "not all of them have been compared";
  EXPECT_EQ(noisy(99, true, 30).check("parameter-desync").state, CheckRecord::State::kPassed);
  EXPECT_EQ(noisy(3, true).ids(), Ids{"parameter-desync"});
  EXPECT_EQ(noisy(99, false).ids(), Ids{"parameter-desync"});
}

TEST(States, BuffersThatAProgramAveragesNowAndThenAreInformation) {
  const auto averaged = [](std::uint64_t every) {
    return played(80, [=](StepRecord& r) {
      for (WorkerRecord& x : r.workers) {
        for (StateHash& s : x.states) {
          if (s.kind != StateHash::Kind::kBuffers) continue;
          s.value = r.step + (r.step % every == 0 ? 0 : x.rank);
        }
      }
    });
  };
  expect(averaged(12), "buffer-desync", {.severity = Severity::kInfo});
  EXPECT_EQ(averaged(1000).first().severity, Severity::kWarning);
}

// Of a layer with two buffers that are hashed in turn, one is equal on all ranks.
TEST(States, PartsOfALayerThatAreEqualAreNotOthersThatAreEqualAgain) {
  Watched w;
  w.play(0, 100, [](StepRecord& r) {
    for (WorkerRecord& x : r.workers) {
      const bool differs = r.step % 25 % 2 == 0;
      for (StateHash& s : x.states) {
        if (s.kind == StateHash::Kind::kBuffers) s.value = r.step + (differs ? x.rank : 0);
      }
    }
    if (r.step != 30) return;
    r.workers.pop_back();
    --r.workers_seen;
    r.missing_replicas = {7};
  });
  const std::vector<Finding> found = w.findings();
  const auto buffers = std::ranges::find(found, "buffer-desync", &Finding::check);
  ASSERT_NE(buffers, found.end());
  EXPECT_EQ(buffers->severity, Severity::kWarning);
}

// Statistics that are averaged, and a codebook that is not.
TEST(States, BuffersThatStayApartAreAWarningBesideOthers) {
  const Watched w = played(80, [](StepRecord& r) {
    for (WorkerRecord& x : r.workers) {
      x.states.push_back({9, StateHash::Kind::kBuffers, r.step + x.rank});
      for (StateHash& s : x.states) {
        const bool averaged = s.kind == StateHash::Kind::kBuffers && s.group != 9;
        if (averaged) s.value = r.step + (r.step % 12 == 0 ? 0 : x.rank);
      }
    }
  });
  EXPECT_EQ(w.first().severity, Severity::kWarning);
}

TEST(States, BuffersAreAWarning) {
  Watched w = played(9, [](WorkerRecord& x) { x.states[1].value += x.rank; });
  expect(w, "buffer-desync", {.severity = Severity::kWarning});
}

// State besides parameters and buffers.
void also(StepRecord& r, StateHash::Kind kind, std::uint32_t rank) {
  for (WorkerRecord& x : r.workers) {
    x.states.push_back({3, kind, r.step >= 5 && x.rank == rank ? 1 : scramble(r.step)});
  }
}

TEST(States, WhatSomeDoNotWatchIsTold) {
  Watched w;
  w.diagnoser.hello(who(6, 6), {"h", {}, {{3, 0, "ema"}, {4, 0, "teacher"}}});
  const auto watch = [](WorkerRecord& x, std::uint64_t group) {
    x.states.push_back({.group = group, .kind = StateHash::Kind::kWatched, .value = 1});
  };
  w.play(0, 9, [&](WorkerRecord& x) {
    if (x.rank != 2) watch(x, 3);
    watch(x, 4);
  });
  expect(w, "state-desync", {.ranks = {2}, .severity = Severity::kInfo});
  EXPECT_EQ(text_of(w.first(), "watched_by_some"), "ema");
}

TEST(States, OfTheOptimizerAndOfWhatIsWatchedMustMatch) {
  for (const auto kind : {StateHash::Kind::kOptimizer, StateHash::Kind::kWatched}) {
    Watched w;
    w.diagnoser.hello(who(6, 6), {"h", {}, {{3, 0, "ema"}}});
    w.play(0, 20, [&](StepRecord& r) { also(r, kind, 6); });
    expect(w, "state-desync", {.ranks = {6}, .severity = Severity::kCritical, .first_step = 5});
    EXPECT_EQ(text_of(w.first(), "groups"), "ema");
    EXPECT_EQ(w.first().equal_until, std::nullopt) << "who knows when it began";
    Watched equal = played(20, [&](StepRecord& r) { also(r, kind, 99); });
    EXPECT_TRUE(equal.ids().empty());
    EXPECT_EQ(equal.check("state-desync").state, CheckRecord::State::kPassed);
  }
}

// The gradients of SAM's ascent.
TEST(States, AnOptimizersOwnStateThatMovesNoParameterApartIsInformation) {
  const auto kept = [](bool moves, bool rests = false) {
    return played(60, [=](StepRecord& r) {
      also(r, StateHash::Kind::kOptimizer, 6);
      for (WorkerRecord& x : r.workers) {
        for (StateHash& s : x.states) {
          if (rests && s.kind == StateHash::Kind::kParameters && s.group == 3) s.value = 7;
        }
      }
      if (!moves || r.step < 8) return;
      for (StateHash& s : r.workers[6].states) {
        if (s.kind == StateHash::Kind::kParameters && r.step % 5 == 0) s.value += 1;
      }
    });
  };
  expect(kept(false), "state-desync", {.severity = Severity::kInfo});
  EXPECT_EQ(kept(true).first().severity, Severity::kCritical);
  EXPECT_EQ(kept(false, true).first().severity, Severity::kCritical)
      << "parameters that rest are equal whatever the state";
}

TEST(States, AnOptimizersStateAfterOtherNumbersOfStepsIsAnotherOne) {
  Watched w = played(90, [](StepRecord& r) {
    if (r.step >= 4) r.workers[6].optimizer_step -= 1;
    also(r, StateHash::Kind::kOptimizer, 6);
  });
  expect(w, "parameter-desync", {.title = "number of optimizer steps"});
}

TEST(States, CopiesThatAreNotEqualAreNamed) {
  Watched w;
  w.diagnoser.hello(who(2, 2), {"h", {{"compared_different", "rollout: 1 of 9: head.weight"}}, {}});
  w.play(0, 9, [](WorkerRecord& x, StepRecord& r) {
    set(x, Kind::kComparedDifferent, std::uint64_t{x.rank == 2 && r.step == 4});
  });
  expect(w, "state-desync", {.ranks = {2}});
  EXPECT_NE(text_of(w.first(), "differ_from_parameters").find("head.weight"), std::string::npos);
}

TEST(States, OnlyEqualShardsAreCompared) {
  const auto found = [](std::uint32_t shards, std::uint32_t rank) {
    Watched w = played(9, [&](WorkerRecord& x, StepRecord& r) {
      for (StateHash& s : x.states) {
        if (s.kind != kParameters) continue;
        s.shard = x.rank % shards + 1;
        s.value = scramble(s.value + s.shard) + (r.step >= 4 && x.rank == rank ? 1 : 0);
      }
    });
    return std::pair(w.ids(), w.check("parameter-desync").state);
  };
  using State = CheckRecord::State;
  EXPECT_EQ(found(2, 99), std::pair(Ids{}, State::kPassed));
  EXPECT_EQ(found(2, 5), std::pair(Ids{"parameter-desync"}, State::kFound));
  EXPECT_EQ(found(8, 5), std::pair(Ids{}, State::kNotPossible)) << "nobody holds the same";
}

TEST(States, OrderAndMissingGroupsDoNotMatter) {
  expect_quiet(played(9, [](StepRecord& r) {
    std::reverse(r.workers[1].states.begin(), r.workers[1].states.end());
    r.workers[2].states.pop_back();
    r.workers[3].states.clear();
  }));
}

TEST(States, RanksThatDriftLaterAreAFindingOfTheirOwn) {
  Watched w = played(200, [](StepRecord& r) {
    if (r.step >= 10) r.workers[3].states[0].value ^= 1;
    if (r.step >= 150) r.workers[5].states[0].value ^= 2;
  });
  const auto found = w.findings();
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].ranks, RankList{3});
  EXPECT_EQ(found[1].ranks, RankList{5});
  EXPECT_EQ(found[1].first_step, 150U);
}

TEST(States, AWorkerThatLeavesOutAnOptimizerStep) {
  Watched w = played(9, [](StepRecord& r) {
    if (r.step >= 5) r.workers[0].optimizer_step -= 1;
  });
  expect(w, "parameter-desync", {.ranks = {0}, .first_step = 5});
  EXPECT_EQ(text_of(w.first(), "optimizer_steps"), "1-7: 10; 0: 9");
}

TEST(States, TwoWorkersWithOtherClocksDiffer) {
  Watched w = played({.workers = 2}, 20, [](StepRecord& r) {
    if (r.step >= 4) r.workers[1].optimizer_step -= 1;
  });
  EXPECT_EQ(w.first().title, "Both ranks took different numbers of optimizer steps");
}

TEST(States, AWorkerWithoutInputMayStayBehind) {
  expect_quiet(played(20, [](StepRecord& r) {
    if (r.step == 8 || r.step == 9) r.workers[0].micro_batches = 0;
    if (r.step >= 8) r.workers[0].optimizer_step -= r.step == 8 ? 1 : 2;
  }));
}

TEST(States, AClockThatIsBehindForOneRecordOrUnknownIsFine) {
  expect_quiet(played(9, [](StepRecord& r) { r.workers[0].optimizer_step -= r.step == 5; }));
  expect_quiet(played(9, [](StepRecord& r) { r.workers[0].optimizer_step = 0; }));
}

TEST(Farewell, LastParametersOfEqualClocksMustMatch) {
  for (const std::uint32_t odd : {6U, 0U}) {  // the first rank to leave may be the one that differs
    Watched w = played(9);
    for (std::uint32_t r = 0; r < 8; ++r) {
      w.diagnoser.farewell(who(r, r),
                           {10, {{1, kParameters, 5}, {2, kParameters, r == odd ? 1U : 0U}}});
    }
    expect(w, "parameter-desync", {.ranks = {odd}, .first_step = 9});
  }
}

// Two replicas of two shards each (HSDP), as ranks 0, 1 and 2, 3.
TEST(Farewell, ShardsAreComparedWithTheirReplicas) {
  const auto titles = [](bool equal) {
    Watched w({.workers = 4});
    w.play(0, 9, [](WorkerRecord& x) {
      x.states = {{1, kParameters, 1 + x.rank % 2, 1 + x.rank % 2}};
    });
    for (std::uint32_t r = 0; r < 4; ++r) {
      const std::uint32_t shard = 1 + r % 2;
      const std::uint64_t value = equal ? shard : r;
      w.diagnoser.farewell(who(r, r), {10, {{1, kParameters, value, shard}}});
    }
    std::vector<std::string> out;
    for (const Finding& f : w.findings()) out.push_back(f.title);
    return out;
  };
  EXPECT_TRUE(titles(true).empty());
  EXPECT_EQ(titles(false), std::vector<std::string>{"All 4 ranks held different parameters"});
}

// A layer that every rank holds beside its shards, and a rank that never leaves.
TEST(Farewell, AWholeLayerBesideShardsIsComparedAmongAllRanks) {
  Watched w({.workers = 4});
  w.play(0, 9);
  for (std::uint32_t r = 0; r < 3; ++r) {
    w.diagnoser.farewell(who(r, r),
                         {10, {{1, kParameters, r, r + 1}, {2, kParameters, r == 1 ? 1U : 0U}}});
  }
  EXPECT_TRUE(w.findings().empty()) << "no more than half";
  w.diagnoser.farewell(who(3, 3), {10, {{1, kParameters, 3, 4}, {2, kParameters, 0}}});
  expect(w, "parameter-desync", {.ranks = {1}});
}

TEST(Farewell, ShardsThatNoTwoRanksHoldAreNotCompared) {
  Watched w({.workers = 2});
  const auto sharded = [](StepRecord& r) {
    for (WorkerRecord& x : r.workers) x.states = {{1, kParameters, r.step + x.rank, x.rank + 1}};
  };
  w.play(0, 9, sharded);
  for (std::uint32_t r = 0; r < 2; ++r) {
    w.diagnoser.farewell(who(r, r), {10, {{1, kParameters, r, r + 1}}});
  }
  EXPECT_TRUE(w.findings().empty());
  EXPECT_EQ(w.check("parameter-desync").state, CheckRecord::State::kNotPossible);
}

TEST(Farewell, OtherClocksAndUnknownOnesAreNotCompared) {
  Watched w = played(9);
  w.diagnoser.farewell(who(0, 0), {10, {{1, kParameters, 5}}});
  w.diagnoser.farewell(who(1, 1), {11, {{1, kParameters, 6}}});
  w.diagnoser.farewell(who(2, 2), {0, {{1, kParameters, 7}}});
  w.diagnoser.farewell(who(3, 3), {0, {{1, kParameters, 8}}});
  EXPECT_TRUE(w.findings().empty());
}

}  // namespace
}  // namespace presum::checks
