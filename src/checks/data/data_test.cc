// SPDX-License-Identifier: Apache-2.0
// duplicate-data, epoch-not-set, dataset-mismatch, shared-rng.
#include <gtest/gtest.h>

#include <optional>

#include "checks/engine/testing.h"

namespace presum::checks {
namespace {

using State = CheckRecord::State;

// Rank `to` reads what rank `from` reads.
void copy_batch(StepRecord& r, std::size_t from, std::size_t to) {
  HealthyRun::read(r.workers[to], r.workers[from].indices);
  r.workers[to].loss = r.workers[from].loss;
}

//
// ---- duplicate-data

TEST(DuplicateData, TwoWorkersAtTheFirstStepInWhateverOrder) {
  for (const bool reversed : {false, true}) {
    Watched w = played(0, [&](StepRecord& r) {
      copy_batch(r, 2, 5);
      auto indices = r.workers[2].indices;
      if (reversed) std::reverse(indices.begin(), indices.end());
      HealthyRun::read(r.workers[5], indices);
    });
    expect(w, "duplicate-data", {.ranks = {2, 5}});
    EXPECT_EQ(text_of(w.first(), "groups_of_ranks"), "2,5");
    EXPECT_DOUBLE_EQ(number_of(w.first(), "rows_equal_share"), 0.25);
  }
}

// The first tensor of every batch is the same on all ranks; the whole batches differ.
TEST(DuplicateData, RowsThatAllWorkersShareAreNot) {
  for (const bool moving : {false, true}) {
    expect_quiet(played(40, [&](StepRecord& r) {
      forget_sampler(r);
      forget_indices(r);
      for (WorkerRecord& x : r.workers) {
        const std::uint64_t at = moving ? r.step * 100 : 0;
        hash_rows(x, [&](std::size_t i) { return at + i; });
        x.loss = 2;
      }
    }));
  }
}

TEST(DuplicateData, WholeBatchesAreFoundBehindRowsThatAllShare) {
  Watched w = played(5, [](StepRecord& r) {
    copy_batch(r, 2, 5);
    forget_sampler(r);
    forget_indices(r);
    for (WorkerRecord& x : r.workers) {
      hash_rows(x, [&](std::size_t i) { return i; });
    }
  });
  expect(w, "duplicate-data", {.ranks = {2, 5}});
}

TEST(DuplicateData, RowsAloneDecideWhereTheWholeBatchIsNotKnown) {
  Watched w = played(0, [](StepRecord& r) {
    copy_batch(r, 2, 5);
    unset(r.workers[5], Kind::kBatch);
    r.workers[5].grad_norm = r.workers[2].grad_norm;
  });
  EXPECT_EQ(w.ids(), Ids{"duplicate-data"});
}

TEST(DuplicateData, OtherLossesWithoutDropoutSayThatMoreThanTheRowsIsData) {
  const auto ids = [](double factor) {
    return played(9,
                  [&](StepRecord& r) {
                    copy_batch(r, 2, 5);
                    r.workers[5].loss = r.workers[2].loss * factor;
                    set(r.workers[5], Kind::kForwardDraws, 0);
                  })
        .ids();
  };
  EXPECT_EQ(ids(1.1), Ids{"overlapping-data"});  // by the indices, which are the same
  EXPECT_EQ(ids(1.001), Ids{"duplicate-data"}) << "noise";
}

TEST(DuplicateData, SeveralGroupsAreOneFinding) {
  Watched w = played(9, [](StepRecord& r) {
    for (std::size_t i = 1; i < 4; ++i) copy_batch(r, 0, i);
    copy_batch(r, 5, 7);
  });
  expect(w, "duplicate-data", {.ranks = {0, 1, 2, 3, 5, 7}});
  EXPECT_EQ(text_of(w.first(), "groups_of_ranks"), "0-3; 5,7");
  EXPECT_EQ(number_of(w.first(), "groups"), 2);
  EXPECT_EQ(w.first().title, "Ranks 0-3,5,7 read the same data within groups");
}

TEST(DuplicateData, AllWorkersWithoutAnySampler) {
  Watched w = played(3, [](StepRecord& r) {
    forget_sampler(r);
    for (std::size_t i = 1; i < 8; ++i) copy_batch(r, 0, i);
    forget_indices(r);
  });
  ASSERT_EQ(w.ids(), Ids{"duplicate-data"});
  EXPECT_EQ(w.first().title, "All 8 ranks read the same data");
}

TEST(DuplicateData, WithoutALoaderItIsNotJudgedBeforeSixSteps) {
  const auto own = [](StepRecord& r) {
    forget_sampler(r);
    forget_indices(r);
    for (WorkerRecord& x : r.workers) unset(x, Kind::kDataClass);
  };
  const auto equal = [&](StepRecord& r) {
    for (WorkerRecord& x : r.workers) {
      HealthyRun::read(x, r.workers[0].indices);
      x.fingerprint = r.workers[0].fingerprint;
      x.loss = 2;
    }
    own(r);
  };
  Watched w = played(4, equal);
  EXPECT_EQ(w.check("duplicate-data").state, State::kNotTriggered);
  EXPECT_EQ(w.check("duplicate-data").reason,
            "Looked at in 5 of 6 steps that it needs: Input that no loader deals may be noise that "
            "is equal on several ranks now and then.");
  w.play(5, 5, equal);
  EXPECT_EQ(w.ids(), Ids{"duplicate-data"});
  Watched later = played(9, own);
  EXPECT_EQ(later.check("duplicate-data").state, State::kPassed);
  later.play(10, 12, equal);
  EXPECT_EQ(later.check("duplicate-data").state, State::kNotTriggered);
}

TEST(DuplicateData, EqualGradientsAreEnoughWithoutFingerprints) {
  const auto equal = [](double norm) {
    return played(0, [&](StepRecord& r) {
      drop_fingerprints(r);
      r.workers[3].fingerprint = r.workers[1].fingerprint;
      r.workers[1].grad_norm = r.workers[3].grad_norm = norm;
    });
  };
  expect(equal(1), "duplicate-data", {.ranks = {1, 3}});
  EXPECT_EQ(text_of(equal(1).first(), "how"), "gradients");
  EXPECT_EQ(equal(1).first().title,
            "Ranks 1,3 had the same gradients bit for bit, so they read the same data");
  expect_quiet(equal(kNaN));  // NaN has no direction
}

TEST(DuplicateData, EqualGradientsFromOtherSamplesAreAPair) {
  const auto equal = [](StepRecord& r) { r.workers[3].fingerprint = r.workers[1].fingerprint; };
  Watched w = played(1, equal);
  EXPECT_TRUE(w.findings().empty());
  w.play(2, 2, equal);
  expect(w, "pair-too-similar",
         {.ranks = {1, 3}, .title = "had the same gradient bit for bit, though they read"});
  EXPECT_EQ(text_of(w.first(), "statistic"), "gradient fingerprint");
}

TEST(DuplicateData, EqualInputAndGradientsBesideALoader) {
  Watched w = played(20, [](WorkerRecord& x, StepRecord& r) {
    hash_rows(x, [&](std::size_t i) { return r.step * 100 + i; });
    set(x, Kind::kBatch, scramble(r.step));
    x.loss = 2;
    x.fingerprint = scramble(r.step + 7);
  });
  ASSERT_FALSE(w.findings().empty());
  EXPECT_EQ(w.first().check, "duplicate-data");
  EXPECT_EQ(w.first().severity, Severity::kCritical);
  EXPECT_NE(w.first().remedy.find("seed that generator by rank"), std::string::npos);
}

TEST(DuplicateData, EqualRecordsAtOtherPlacesAreNot) {
  expect_quiet(
      played(9, [](StepRecord& r) { r.workers[5].samples.hashes = r.workers[2].samples.hashes; }));
}

TEST(DuplicateData, BatchesOfOneRowTakeThreeStepsWithChangingRows) {
  Watched moving = played({.rows = 1}, 1, [](StepRecord& r) { copy_batch(r, 2, 5); });
  EXPECT_TRUE(moving.findings().empty());
  moving.play(2, 2, [](StepRecord& r) { copy_batch(r, 2, 5); });
  EXPECT_EQ(moving.ids(), Ids{"duplicate-data"});
  const auto all_read = [](std::uint64_t rows, const auto& batch) {
    return played({.rows = rows}, 9, [&](StepRecord& r) {
      forget_sampler(r);
      for (WorkerRecord& x : r.workers) HealthyRun::read(x, batch(r.step));
      forget_indices(r);
    });
  };
  using Batch = std::vector<std::uint64_t>;
  expect_quiet(all_read(1, [](std::uint64_t) { return Batch{7}; }));  // the same row forever
  expect_quiet(all_read(4, [](std::uint64_t step) { return Batch{step, step, step}; }));
}

TEST(DuplicateData, DrawingWithReplacementTakesThreeSteps) {
  Watched w;
  w.diagnoser.hello(who(0, 0), {"h", {{"sampler", "RandomSampler: replacement=True"}}, {}});
  w.play(0, 1, [](StepRecord& r) { copy_batch(r, 2, 5); });
  EXPECT_TRUE(w.findings().empty());
  w.play(2, 2, [](StepRecord& r) { copy_batch(r, 2, 5); });
  EXPECT_EQ(w.ids(), Ids{"duplicate-data"});
}

TEST(DuplicateData, ThinnedSamplesAreComparedAlike) {
  Watched w = played(0, [](StepRecord& r) {
    forget_indices(r);
    for (WorkerRecord& x : r.workers) {
      x.samples.hashes = {8 * (x.rank + 1), 16 * (x.rank + 100), 3 + x.rank};
    }
    r.workers[5].loss = r.workers[2].loss;
    r.workers[5].grad_norm = r.workers[2].grad_norm;
    r.workers[5].samples.hashes = {24, 16 * 102};  // rank 2's, without the rows that were left out
    r.workers[5].samples.thinned = 3;
    set(r.workers[5], Kind::kBatch, *r.workers[2].fingerprint_of(Kind::kBatch));
  });
  expect(w, "duplicate-data", {.ranks = {2, 5}});
}

// ---- epoch-not-set

const RunOptions kShort{.workers = 4, .rows = 4, .data = 160};  // 10 steps a pass

void keep_epoch(const HealthyRun& run, StepRecord& r) {
  for (WorkerRecord& w : r.workers) {
    HealthyRun::read(w, run.drawn(r.step, w.replica, 42, 0));
    set(w, Kind::kSamplerEpoch, 0);
  }
}

TEST(EpochNotSet, IsSeenAtTheFirstStepOfTheSecondPass) {
  Watched w(kShort);
  w.play(0, 9, [&](StepRecord& r) { keep_epoch(w.run, r); });
  EXPECT_TRUE(w.findings().empty());
  EXPECT_EQ(w.check("epoch-not-set").state, State::kNotTriggered);
  w.play(10, 10, [&](StepRecord& r) { keep_epoch(w.run, r); });
  expect(w, "epoch-not-set",
         {.count = 4,
          .first_step = 10,
          .title = "read the data in the same order as in the pass before"});
  EXPECT_EQ(number_of(w.first(), "batches_repeated"), 1);
  EXPECT_GT(w.first().confidence, 0.9);
}

TEST(EpochNotSet, RowsThatAreAugmentedDoNotHideIt) {
  Watched w(kShort);
  w.play(0, 12, [&](StepRecord& r) {
    keep_epoch(w.run, r);
    for (WorkerRecord& x : r.workers) {
      hash_rows(x, [&](std::size_t i) { return 1000 * r.step + 10 * x.rank + i; });
      set(x, Kind::kBatch, scramble(r.step * 8 + x.rank));
    }
  });
  expect(
      w, "epoch-not-set",
      {.count = 4,
       .first_step = 10,
       .title = "drew the same indices in the same order as in the pass before, and other rows"});
  EXPECT_EQ(value_in(w.first(), "rows_differ"), true);
  EXPECT_LT(w.first().confidence, 0.9);
}

TEST(EpochNotSet, ANewOrderIsFineWhateverTheSamplerSays) {
  Watched w = played(kShort, 25, [](WorkerRecord& x) { set(x, Kind::kSamplerEpoch, 0); });
  EXPECT_TRUE(w.findings().empty());
  EXPECT_EQ(w.check("epoch-not-set").state, State::kPassed);
}

TEST(EpochNotSet, BatchesThatDifferBehindEqualRowsAreANewOrder) {
  expect_quiet(
      played(kShort, 35, [](WorkerRecord& x) { hash_rows(x, [&](std::size_t i) { return i; }); }));
}

TEST(EpochNotSet, WithoutSamplesTheSamplersWordIsEnough) {
  Watched w(kShort);
  w.play(0, 10, [&](StepRecord& r) {
    keep_epoch(w.run, r);
    for (WorkerRecord& x : r.workers) {
      x.samples.hashes.clear();
      x.indices.clear();
    }
  });
  ASSERT_EQ(w.ids(), Ids{"epoch-not-set"});
  EXPECT_LT(w.first().confidence, 0.9);
  EXPECT_EQ(w.first().title,
            "All 4 ranks shuffled the data by the same epoch as in the pass before");
  EXPECT_EQ(number_of(w.first(), "batches_repeated"), 0);
  EXPECT_EQ(value_in(w.first(), "sampler_epoch_kept"), true);
}

TEST(EpochNotSet, APassThatGoesOnInItsMiddleKeepsItsEpoch) {
  for (const bool known : {true, false}) {
    expect_quiet(
        played({.workers = 4, .rows = 4, .data = 800}, 30, [&](WorkerRecord& x, StepRecord& r) {
          set(x, Kind::kSamplerEpoch, 0);
          set(x, Kind::kDataPass, std::uint64_t{r.step >= 10 ? 1U : 0U});
          set(x, Kind::kDataBatch, r.step);
          if (!known) x.samples.hashes.clear();
          if (!known) x.indices.clear();
        }));
  }
}

TEST(EpochNotSet, IsFoundWhereSomeStepsAreRecorded) {
  Watched w({.workers = 4, .rows = 4, .data = 784});  // 49 steps a pass
  for (std::uint64_t step = 0; step < 196; step += 4) {
    w.play(step, step, [&](StepRecord& r) {
      keep_epoch(w.run, r);
      for (WorkerRecord& x : r.workers) set(x, Kind::kDataBatch, r.step % 49);
    });
  }
  ASSERT_EQ(w.ids(), Ids{"epoch-not-set"});
}

TEST(EpochNotSet, SequentialDataRepeatsOnPurpose) {
  const auto repeated = [](const Break& sampler) {
    Watched w(kShort);
    w.play(0, 25, [&](StepRecord& r) {
      keep_epoch(w.run, r);
      sampler(r);
    });
    return w;
  };
  expect_quiet(repeated([](WorkerRecord& x) { set(x, Kind::kSamplerShuffle, 0); }));
  const Watched unknown = repeated(forget_sampler);
  EXPECT_TRUE(unknown.findings().empty());
  EXPECT_EQ(unknown.check("epoch-not-set").state, State::kNotPossible);
}

TEST(EpochNotSet, AShufflerWithoutEpochsIsJudgedByEightBatches) {
  Watched w(kShort);
  const auto broken = [&](StepRecord& r) {
    keep_epoch(w.run, r);
    for (WorkerRecord& x : r.workers) {
      unset(x, Kind::kSamplerEpoch);
      set(x, Kind::kSamplerSetsEpoch, 0);
    }
  };
  w.play(0, 16, broken);
  EXPECT_TRUE(w.findings().empty());
  w.play(17, 17, broken);
  EXPECT_EQ(w.ids(), Ids{"epoch-not-set"});
}

TEST(EpochNotSet, NamesTheWorkersThatForgot) {
  Watched w(kShort);
  w.play(0, 10, [&](StepRecord& r) {
    HealthyRun::read(r.workers[2], w.run.drawn(r.step, 2, 42, 0));
    set(r.workers[2], Kind::kSamplerEpoch, 0);
  });
  ASSERT_EQ(w.findings().size(), 1U) << "with the sampler's epoch";
  EXPECT_EQ(w.first().check, "epoch-not-set");
  EXPECT_EQ(w.first().ranks, RankList{2});
}

// A learning-rate finder, or a program that never reaches the end of a pass.
TEST(EpochNotSet, TheFirstPassThatIsLeftIsNotCompared) {
  Watched w(kShort);
  const auto again = [&](StepRecord& r) {
    for (WorkerRecord& x : r.workers) {
      HealthyRun::read(x, w.run.drawn(r.step % 4, x.replica, 42, 0));
      set(x, Kind::kDataPass, r.step / 4);
      set(x, Kind::kDataBatch, r.step % 4);
      set(x, Kind::kSamplerEpoch, 0);
      set(x, Kind::kDataEnded, 0);
    }
  };
  w.play(0, 7, again);
  expect_quiet(w);
  w.play(8, 9, again);
  EXPECT_EQ(w.ids(), Ids{"epoch-not-set"});
}

// ---- dataset-mismatch

// Input that a program draws itself: no loader, whole batches known.
void draw_itself(StepRecord& r, const std::function<std::uint64_t(const WorkerRecord&)>& seed) {
  for (WorkerRecord& w : r.workers) {
    const std::uint64_t of = seed(w);
    w.indices.clear();
    w.samples.hashes = {scramble(of), scramble(of + 1), scramble(of + 2)};
    w.samples.rows = 3;
    set(w, Kind::kBatch, scramble(of + 3));
    unset(w, Kind::kDataClass);
    unset(w, Kind::kDataPass);
  }
}

TEST(Duplicates, EqualInputThatAProgramDrawsIsSeenThoughItsLossesDiffer) {
  Watched w = played(20, [](StepRecord& r) {
    draw_itself(
        r, [&](const WorkerRecord& x) { return 1000 * r.step + (x.rank == 5 ? 2 : x.rank) * 10; });
  });
  expect(w, "duplicate-data", {.ranks = {2, 5}, .severity = Severity::kCritical});
}

// Contexts that all ranks share and for which each draws its own actions: gradients differ.
TEST(Duplicates, EqualRowsWithOtherGradientsAreNotAllOfTheData) {
  const auto shared = [](std::optional<std::uint64_t> draws, float cosine) {
    return played(20, [=](StepRecord& r) {
      draw_itself(r, [&](const WorkerRecord&) { return 1000 * r.step; });
      for (WorkerRecord& x : r.workers) {
        if (draws) set(x, Kind::kForwardDraws, *draws);
        set(x, Kind::kRngTorch, 100 * r.step + x.rank);
        set(x, Kind::kDropout, 0.0);
      }
      r.cosines.assign(28, r.step == 7 ? 0.99F : cosine);
    });
  };
  expect_quiet(shared(0, 0.5F));
  EXPECT_EQ(shared(0, 0.99F).ids(), Ids{"duplicate-data"});
  EXPECT_EQ(shared(1, 0.5F).ids(), Ids{"duplicate-data"}) << "the model itself draws";
  EXPECT_EQ(shared({}, 0.5F).ids(), Ids{"duplicate-data"}) << "perhaps it does";
  const auto drawing_alike = [](std::uint64_t apart) {
    return played(20, [=](StepRecord& r) {
      draw_itself(r, [&](const WorkerRecord&) { return 1000 * r.step; });
      for (WorkerRecord& x : r.workers) {
        set(x, Kind::kForwardDraws, 1);
        set(x, Kind::kDropout, 0.5);
        set(x, Kind::kRngTorch, r.step + apart * x.rank);
      }
      r.cosines.assign(28, 0.5F);
    });
  };
  EXPECT_EQ(drawing_alike(0).first().severity, Severity::kInfo);
  EXPECT_EQ(drawing_alike(1000).ids(), Ids{"duplicate-data"});
}

TEST(Duplicates, NeighborsThatShareTheirInputAreModelParallelWhereAllOfThemDo) {
  const auto found = [](auto pair_of) {
    Watched w = played(20, [&](StepRecord& r) {
      draw_itself(r, [&](const WorkerRecord& x) { return 1000 * r.step + pair_of(x.rank) * 10; });
    });
    EXPECT_EQ(w.ids(), Ids{"duplicate-data"});
    return w.first();
  };
  const auto neighbors = found([](std::uint32_t rank) { return rank / 2; });
  EXPECT_EQ(neighbors.severity, Severity::kInfo);
  EXPECT_NE(neighbors.title.find("in groups of 2"), std::string::npos) << neighbors.title;
  EXPECT_NE(neighbors.remedy.find("process_group="), std::string::npos);
  EXPECT_EQ(found([](std::uint32_t rank) { return rank % 4; }).severity, Severity::kCritical);
  const auto most = [](std::uint32_t rank) { return rank < 6 ? rank / 2 : rank; };
  EXPECT_EQ(found(most).severity, Severity::kCritical);
}

TEST(Duplicates, NoiseThatIsEqualInSomeOfTheStepsIsCalledSo) {
  Watched w = played(60, [](StepRecord& r) {
    const bool noise = r.step % 3 != 0;
    draw_itself(r,
                [&](const WorkerRecord& x) { return 1000 * r.step + (noise ? 0 : x.rank * 10); });
  });
  expect(w, "duplicate-data",
         {.severity = Severity::kWarning, .title = "in some steps", .remedy = "noise"});
  const double equal = number_of(w.first(), "steps_with_the_same_input");
  EXPECT_NEAR(equal / number_of(w.first(), "of_steps"), 2.0 / 3, 0.1);
}

TEST(Duplicates, AProbeThatComesBackNowAndThenIsNone) {
  expect_quiet(played(400, [](StepRecord& r) {
    const bool probe = r.step % 100 == 3;
    draw_itself(r, [&](const WorkerRecord& x) { return probe ? 7 : 1000 * r.step + x.rank * 10; });
  }));
}

TEST(Duplicates, AGroupIsOfItsRanksWhereverTheyStandInARecord) {
  Watched w = played(60, [](StepRecord& r) {
    draw_itself(r, [&](const WorkerRecord& x) {
      const bool noise = (x.rank == 4 || x.rank == 5) && r.step % 3 != 0;
      return noise ? 7000 * r.step : 1000 * r.step + x.rank * 10;
    });
    if (r.step % 2 == 1) {
      r.workers.erase(r.workers.begin());
      r.cosines.clear();
    }
  });
  const auto found = w.findings();
  const auto drawn = std::ranges::find(found, "duplicate-data", &Finding::check);
  ASSERT_NE(drawn, found.end());
  EXPECT_EQ(drawn->ranks, (RankList{4, 5}));
  EXPECT_NEAR(number_of(*drawn, "steps_with_the_same_input"), 40, 1);
}

TEST(Manifest, ShardsOfTheirOwnMayDiffer) {
  Watched w = played(9, [](StepRecord& r) {
    forget_sampler(r);
    for (WorkerRecord& x : r.workers) set(x, Kind::kDataLength, 512 + x.rank);
  });
  EXPECT_TRUE(w.findings().empty());
  EXPECT_EQ(w.check("dataset-mismatch").state, State::kNotPossible);
}

TEST(Manifest, TheSamePlaceMustHoldTheSameSample) {
  Watched w = played(kShort, 29, [](StepRecord& r) {
    WorkerRecord& x = r.workers[1];
    hash_rows(x, [&](std::size_t i) { return 159 - x.indices[i]; });
  });
  expect(w, "dataset-mismatch", {.ranks = {1}});
  EXPECT_GE(number_of(w.first(), "indices_in_conflict"), 8);
}

void read_otherwise(WorkerRecord& x, std::uint64_t way) {
  hash_rows(x, [&](std::size_t i) { return 7'000'000 * way + x.indices[i]; });
}

const RunOptions kEight{.workers = 8, .rows = 4, .data = 320};

TEST(Manifest, NamesEachRankThatConflictsWithTheMany) {
  Watched w = played(kEight, 29, [](StepRecord& r) {
    read_otherwise(r.workers[2], 1);
    read_otherwise(r.workers[5], 1);
    read_otherwise(r.workers[6], 2);
  });
  expect(w, "dataset-mismatch", {.ranks = {2, 5, 6}});
  EXPECT_FALSE(w.first().title.starts_with("All"));
}

TEST(Manifest, OfTwoWaysOfEquallyManyNobodyIsTheOddOne) {
  Watched w = played(kEight, 49, [](StepRecord& r) {
    for (std::size_t i = 0; i < 4; ++i) read_otherwise(r.workers[i], 1);
  });
  expect(w, "dataset-mismatch", {.count = 8});
}

TEST(Manifest, IsDatedFromTheFirstConflict) {
  Watched w = played(kEight, 19, [](StepRecord&) {});
  EXPECT_TRUE(w.findings().empty());
  w.play(20, 49, [](StepRecord& r) { read_otherwise(r.workers[3], 1); });
  ASSERT_EQ(w.ids(), Ids{"dataset-mismatch"}) << w.first().title;
  EXPECT_LE(w.first().first_step, 21U);
}

TEST(Manifest, RowsThatChangeNowAndThenOrAllTheTimeAreNoOtherData) {
  expect_quiet(played(kEight, 99, [](WorkerRecord& x, StepRecord& r) {
    if (mix64(r.step * 64 + x.rank) % 4 == 0) read_otherwise(x, 1);  // flips whole batches
  }));
  expect_quiet(played(kEight, 49, [](WorkerRecord& x, StepRecord& r) {  // augmentation
    for (std::uint64_t& row : x.samples.hashes) row = scramble(row + r.step);
  }));
}

TEST(Manifest, ASubsetOfItsOwnIsSeenAtTheFirstStepAndToldHowToMend) {
  Watched w = played(0, [](WorkerRecord& x) { set(x, Kind::kDataSubset, 1 + x.rank); });
  expect(w, "dataset-mismatch", {.remedy = "random_split"});
  EXPECT_EQ(w.first().title, "The ranks differ in their dataset: data subset");
}

TEST(Manifest, ContentsThatOneRankHasReadEarlierAreNoDifference) {
  expect_quiet(played(9, [](StepRecord& r) { set(r.workers[0], Kind::kDataContents, 5); }));
}

// ---- shared-rng

TEST(Manifest, RanksThatTakeTurnsOverTheSameOnesAreFine) {
  const auto turns = [](std::uint64_t sets_of_rank_3) {
    return played(80, [=](StepRecord& r) {
      for (WorkerRecord& w : r.workers) {
        const std::uint64_t sets = w.rank == 3 ? sets_of_rank_3 : 4;
        set(w, Kind::kDataContents, 1 + (r.step + w.rank) % sets);
      }
    });
  };
  for (const Finding& f : turns(4).findings()) EXPECT_NE(f.check, "dataset-mismatch");
  EXPECT_EQ(turns(3).first().check, "dataset-mismatch");
}

TEST(SharedRng, EqualStreamsUnderDropoutAreInformation) {
  Watched w = played(0, [](WorkerRecord& x) { set(x, Kind::kDropout, 0.1); });
  expect(w, "shared-rng", {.count = 8, .severity = Severity::kInfo});
  EXPECT_EQ(w.first().title, "All 8 ranks had equal random numbers for dropout (torch generator)");
  EXPECT_EQ(text_of(w.first(), "drawn_by"), "dropout");
}

TEST(SharedRng, DropoutOnADeviceDrawsFromTheDevice) {
  Watched w = played(9, [](WorkerRecord& x) {
    set(x, Kind::kDropout, 0.1);
    set(x, Kind::kRngDevice, 100 + x.rank);
  });
  EXPECT_TRUE(w.findings().empty());
  EXPECT_EQ(w.check("shared-rng").state, State::kPassed);
}

TEST(SharedRng, AStreamThatStandsStillIsNotInUse) {
  Watched w = played(9);
  EXPECT_TRUE(w.findings().empty());
  EXPECT_EQ(w.check("shared-rng").state, State::kNotTriggered);
}

TEST(SharedRng, WhatALoaderDrawsAtThePassBeginningIsNone) {
  const auto of_batch = [](std::uint64_t batch) {
    return played(9, [=](WorkerRecord& x, StepRecord& r) {
      set(x, Kind::kRngTorch, 1000 + r.step);
      set(x, Kind::kDataBatch, batch);
    });
  };
  EXPECT_EQ(of_batch(0).check("shared-rng").state, State::kNotTriggered);
  EXPECT_EQ(of_batch(3).check("shared-rng").state, State::kFound);
}

TEST(SharedRng, AMovingStreamIsInUse) {
  Watched w =
      played(3, [](WorkerRecord& x, StepRecord& r) { set(x, Kind::kRngNumpy, 1000 + r.step); });
  ASSERT_EQ(w.ids(), Ids{"shared-rng"});
  EXPECT_EQ(text_of(w.first(), "generator"), "numpy");
  EXPECT_EQ(text_of(w.first(), "ranks_alike"), "0-7");
  expect_quiet(played(9, [](WorkerRecord& x, StepRecord& r) {
    set(x, Kind::kRngNumpy, 1000 * (x.rank + 1) + r.step);
  }));
}

TEST(SharedRng, WithinTheForwardPassItIsAWarning) {
  const auto found = [](auto change, const char* seeded_by = "") {
    Watched w;
    w.diagnoser.hello(who(0, 0), {"h", {{"seeded_by", seeded_by}}, {}});
    w.play(0, 9, [&](WorkerRecord& x, StepRecord& r) {
      set(x, Kind::kDropout, 0.0);
      set(x, Kind::kRngTorch, 1000 + r.step);
      set(x, Kind::kForwardDraws, 1);
      change(x);
    });
    EXPECT_EQ(w.ids(), Ids{"shared-rng"});
    return w.first();
  };
  const auto nothing_else = [](WorkerRecord&) {};
  const Finding noise = found(nothing_else);
  EXPECT_EQ(noise.severity, Severity::kWarning);
  EXPECT_NE(noise.title.find("within the forward pass"), std::string::npos) << noise.title;
  EXPECT_EQ(noise.ranks.size(), 8U);
  EXPECT_EQ(found(nothing_else, "lightning").severity, Severity::kInfo);
  using Change = void (*)(WorkerRecord&);
  const Change harmless[] = {[](WorkerRecord& x) { set(x, Kind::kForwardDraws, 0); },
                             [](WorkerRecord& x) { set(x, Kind::kForwardDraws, 2); },
                             [](WorkerRecord& x) { unset(x, Kind::kForwardDraws); },
                             [](WorkerRecord& x) { set(x, Kind::kDropout, 0.1); },
                             [](WorkerRecord& x) { unset(x, Kind::kDropout); }};
  for (const Change change : harmless) EXPECT_EQ(found(change).severity, Severity::kInfo);
}

// All ranks at first, then two of four: what is said last holds of these two.
TEST(SharedRng, RanksThatPartAreNotNamedByWhatHeldBefore) {
  Watched w({.workers = 4});
  w.play(0, 20, [](WorkerRecord& x, StepRecord& r) {
    set(x, Kind::kDropout, 0.1);
    const bool apart = r.step >= 5 && x.rank < 2;
    set(x, Kind::kRngTorch, 1000 * (apart ? x.rank + 1 : 9) + r.step);
  });
  ASSERT_EQ(w.ids(), Ids{"shared-rng"});
  const Finding found = w.first();
  EXPECT_EQ(found.ranks, (Ranks{2, 3}));
  EXPECT_EQ(found.last_step, 20U);
  EXPECT_TRUE(found.title.starts_with("Ranks 2-3 had equal random numbers")) << found.title;
  ASSERT_EQ(found.evidence.size(), 2U);
  EXPECT_EQ(text_of(found, "ranks_alike"), "2-3");
  EXPECT_NE(found.evidence[1].values.find(R"("ranks_alike":"0-3")"), std::string::npos);
}

TEST(SharedRng, PairsWithEqualSeedsAreGroups) {
  Watched w({.workers = 4});
  w.play(0, 9, [](WorkerRecord& x, StepRecord& r) {
    set(x, Kind::kDropout, 0.1);
    set(x, Kind::kRngTorch, 1000 * (x.rank / 2 + 1) + r.step);
  });
  ASSERT_EQ(w.ids(), Ids{"shared-rng"});
  EXPECT_EQ(w.first().title,
            "All 4 ranks had equal random numbers for dropout, in 2 groups (torch generator)");
  EXPECT_EQ(text_of(w.first(), "ranks_alike"), "0-1; 2-3");
}

TEST(SharedRng, NamesTheRanksThatTookAnothersState) {
  Watched w = played(20, [](WorkerRecord& x, StepRecord& r) {
    set(x, Kind::kDropout, 0.1);
    const bool restored = r.step >= 10 && x.rank >= 4;
    set(x, Kind::kRngTorch, 1000 * (restored ? 5 : x.rank + 1) + r.step);
  });
  expect(w, "shared-rng", {.ranks = {4, 5, 6, 7}, .first_step = 10});
}

}  // namespace
}  // namespace presum::checks
