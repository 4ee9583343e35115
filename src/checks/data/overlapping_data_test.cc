// SPDX-License-Identifier: Apache-2.0
// overlapping-data.
#include <gtest/gtest.h>

#include <set>

#include "checks/engine/testing.h"

namespace presum::checks {
namespace {

using State = CheckRecord::State;

const RunOptions kPasses{.workers = 8, .rows = 4, .data = 1003};  // padded by 5; 32 steps a pass

// For a run in which other checks may fire too.
Finding overlap_in(const Watched& w) {
  const auto found = w.findings();
  const auto overlap = std::ranges::find(found, "overlapping-data", &Finding::check);
  EXPECT_NE(overlap, found.end());
  return overlap == found.end() ? Finding{} : *overlap;
}

// Every rank's sampler has its own seed.
Break own_seeds(const HealthyRun& run, bool all) {
  return [&run, all](StepRecord& r) {
    for (WorkerRecord& w : r.workers) {
      if (!all && w.rank != 0) continue;
      const std::uint64_t seed = 1000 + w.rank;
      HealthyRun::read(w, run.drawn(r.step, w.replica, seed, r.step / run.steps_per_pass()));
      set(w, Kind::kSamplerSeed, seed);
    }
  };
}

TEST(Overlap, PaddingAtTheEndOfAPassIsNotOverlap) {
  for (const bool indices : {true, false}) {
    Watched w = played(kPasses, 100, [&](StepRecord& r) {
      if (!indices) forget_indices(r);
    });
    EXPECT_TRUE(w.findings().empty()) << w.first().title;
    EXPECT_EQ(w.check("overlapping-data").state, State::kPassed);
  }
}

TEST(Overlap, BatchesFilledUpFromTheFirstStepAreNotOverlap) {
  Watched w(kPasses);
  w.play(0, 70, [&](StepRecord& r) {
    if (r.step % 32 != 31) return;
    for (WorkerRecord& x : r.workers) {  // even batches: a whole step of samples again
      HealthyRun::read(x, w.run.drawn(r.step - 31, x.replica, 42, r.step / 32));
    }
  });
  EXPECT_TRUE(w.findings().empty()) << w.first().title;
}

// An endless sampler: its loader is iterated once.
void one_endless_pass(StepRecord& r) {
  for (WorkerRecord& w : r.workers) {
    set(w, Kind::kDataPass, 0);
    set(w, Kind::kSamplerEpoch, 0);
    set(w, Kind::kDataBatch, r.step);
  }
}

TEST(Overlap, AnEndlessSamplerDrawsTheDataAgainAndAgain) {
  Watched w = played(kPasses, 150, one_endless_pass);
  EXPECT_TRUE(w.findings().empty()) << w.first().title;
  EXPECT_EQ(w.check("overlapping-data").state, State::kPassed);
}

TEST(Overlap, SeedsOfTheirOwnInAnEndlessSamplerDoubleSamplesAllTheSame) {
  Watched w(kPasses);
  const auto broken = own_seeds(w.run, true);
  w.play(0, 150, [&](StepRecord& r) {
    broken(r);
    one_endless_pass(r);
  });
  ASSERT_FALSE(w.findings().empty());
  EXPECT_EQ(w.first().also, Ids{"overlapping-data"});
}

TEST(Overlap, LoadersInTurnOverTwoDataSetsShareTheirIndices) {
  for (const bool two : {true, false}) {
    Watched w(kPasses);
    w.play(0, 31, [&](WorkerRecord& x, StepRecord& r) {
      HealthyRun::read(x, w.run.drawn(r.step / 2, x.replica, 42, 0));
      if (two) set(x, Kind::kDataContents, r.step % 2);
    });
    EXPECT_EQ(w.findings().empty(), two) << w.first().title;
  }
}

TEST(Overlap, IndicesCountWithinTheShareThatADataSetHolds) {
  for (const bool shares : {true, false}) {
    Watched w(kPasses);
    w.play(0, 31, [&](WorkerRecord& x, StepRecord& r) {
      HealthyRun::read(x, w.run.drawn(r.step, 0, 42, 0));
      for (std::uint64_t& row : x.samples.hashes) row = scramble(row + x.rank);
      set(x, Kind::kBatch, scramble(x.samples.hashes[0]));
      if (shares) set(x, Kind::kDataShare, 7 + x.rank);
    });
    const Ids ids = w.ids();
    EXPECT_EQ(std::ranges::find(ids, "overlapping-data") == ids.end(), shares);
    const State coverage = w.check("data-coverage").state;
    EXPECT_EQ(coverage == State::kNotPossible, shares);
  }
}

TEST(Overlap, ASamplerThatRepeatsSamplesIsNotJudged) {
  for (const char* sampler : {"RepeatSampler: length=8", "BatchSampler(RASampler): rank=0"}) {
    Watched w(kPasses);
    w.diagnoser.hello(who(0, 0), {.facts = {{"sampler", sampler}}});
    w.play(0, 40, [&](WorkerRecord& x, StepRecord& r) {
      HealthyRun::read(x, w.run.drawn(r.step / 4, 0, 42, 0));
    });
    for (const Finding& f : w.findings()) EXPECT_NE(f.check, "overlapping-data");
    for (const Finding& f : w.findings()) EXPECT_NE(f.check, "duplicate-data");
    EXPECT_NE(w.check("overlapping-data").reason.find("by design"), std::string::npos);
  }
}

TEST(Overlap, AnEndlessSamplerIsNoneThatRepeats) {
  Watched w(kPasses);
  w.diagnoser.hello(
      who(0, 0), {.facts = {{"sampler", "_RepeatSampler(BatchSampler(RandomSampler)): length=8"}}});
  w.play(0, 40, [&](WorkerRecord& x, StepRecord& r) {
    HealthyRun::read(x, w.run.drawn(r.step, 0, 42, 0));
    x.loss = 2;
  });
  const Ids ids = w.ids();
  EXPECT_NE(std::ranges::find(ids, "duplicate-data"), ids.end());
}

TEST(Overlap, WithoutASamplerForAllThePassIsAsLongAsAllWorkersData) {
  Watched w =
      played({.workers = 2, .rows = 16, .data = 512}, 31, [&](WorkerRecord& x, StepRecord& r) {
        // each rank reads all of it, in its own order
        unset(x, Kind::kSamplerReplicas);
        unset(x, Kind::kSamplerLength);
        const auto all = shuffled(512, x.rank, 0);
        HealthyRun::read(x, {all.begin() + static_cast<std::ptrdiff_t>(16 * r.step),
                             all.begin() + static_cast<std::ptrdiff_t>(16 * r.step + 16)});
        x.indices.clear();
        set(x, Kind::kDataPass, 0);
        set(x, Kind::kDataBatch, r.step);
      });
  EXPECT_EQ(number_of(overlap_in(w), "samples_doubled"), 512);
}

TEST(Overlap, DataThatAreMadeAnewForEachPassAreNoneThatIsReadAgain) {
  Watched w = played({.workers = 2, .rows = 16, .data = 512}, 47, [&](WorkerRecord& x) {
    // batches of a custom sampler, one share per rank
    unset(x, Kind::kSamplerReplicas);
    unset(x, Kind::kSamplerLength);
    x.indices.clear();
    set(x, Kind::kDataPass, 0);
  });
  EXPECT_TRUE(w.findings().empty()) << w.first().title;
  EXPECT_EQ(w.check("overlapping-data").state, State::kPassed);
}

// Rank r reads as rank r / 2 of four does: sequence parallelism inside the group.
void in_pairs(const HealthyRun& run, StepRecord& r, std::uint64_t stride) {
  for (WorkerRecord& w : r.workers) {
    const std::uint64_t place = stride == 1 ? w.rank / 2 : w.rank % 4;
    WorkerRecord of_place = run.step(r.step).workers[place];
    w.fingerprints = of_place.fingerprints;
    w.samples = of_place.samples;
    w.indices = of_place.indices;
  }
}

TEST(Overlap, PairsOfRanksThatShareAPlaceOfTheSamplerAreToldOnce) {
  const HealthyRun four({.workers = 4, .rows = 4, .data = 1003});
  Watched w = played(kPasses, 140, [&](StepRecord& r) { in_pairs(four, r, 1); });
  expect(w, "sampler-mismatch", {.severity = Severity::kInfo, .title = "groups of 2"});
  EXPECT_EQ(w.check("overlapping-data").state, State::kPassed);
}

TEST(Overlap, PairsOfRanksWithEqualGradientsDoTheWorkOfOne) {
  const HealthyRun four({.workers = 4, .rows = 4, .data = 1003});
  Watched w = played(kPasses, 40, [&](StepRecord& r) {
    in_pairs(four, r, 1);
    for (WorkerRecord& x : r.workers) {
      x.fingerprint = scramble(r.step * 64 + x.rank / 2) | 1;
      x.loss = 2 + 0.1 * (x.rank / 2);
    }
  });
  ASSERT_FALSE(w.findings().empty());
  EXPECT_EQ(w.first().check, "duplicate-data");
  EXPECT_EQ(w.first().severity, Severity::kCritical);
}

TEST(Overlap, PairsOfRanksApartOrInASamplerForAllStayAFault) {
  const HealthyRun four({.workers = 4, .rows = 4, .data = 1003});
  const HealthyRun eight(kPasses);
  for (const auto& [run, stride] : {std::pair(&four, 2U), std::pair(&eight, 1U)}) {
    const Watched w =
        played(kPasses, 40, [&, of = run, by = stride](StepRecord& r) { in_pairs(*of, r, by); });
    EXPECT_GE(w.first().severity, Severity::kWarning);
    EXPECT_FALSE(w.findings().empty());
  }
}

TEST(Overlap, SamplesThatAllComeEquallyOftenAreOfASamplerThatRepeats) {
  Watched w(kPasses);
  w.play(0, 31, [&](WorkerRecord& x, StepRecord& r) {
    // two prompts, two generations of each, on two ranks
    const std::vector<std::uint64_t> two = w.run.drawn(r.step / 2, x.replica / 2, 42, 0);
    HealthyRun::read(x, {two[0], two[0], two[1], two[1]});
  });
  EXPECT_TRUE(w.findings().empty()) << w.first().title;
  EXPECT_NE(w.check("overlapping-data").reason.find("by design"), std::string::npos);
}

TEST(Overlap, OneSeedOfItsOwnIsNamedWithWhatItDoubles) {
  Watched w(kPasses);
  const auto broken = own_seeds(w.run, false);
  w.play(0, 31, broken);
  expect(w, "sampler-mismatch", {.ranks = {0}, .also = {"overlapping-data"}});
  const Finding f = w.first();
  EXPECT_EQ(f.evidence.back().ranks, RankList{0}) << "the same rank";

  // The oracle: a set over the whole pass, without the last step's padding.
  std::set<std::uint64_t> seen;
  std::uint64_t doubled = 0, drawn = 0;
  for (std::uint64_t step = 0; step < 32; ++step) {
    StepRecord r = w.run.step(step);
    broken(r);
    for (const WorkerRecord& x : r.workers) {
      for (const std::uint64_t i : x.indices) {
        doubled += !seen.insert(i).second;
        ++drawn;
      }
    }
  }
  EXPECT_EQ(number_of(f, "samples_drawn"), static_cast<double>(drawn));
  EXPECT_NEAR(number_of(f, "samples_doubled"), static_cast<double>(doubled), 10);
  EXPECT_GT(number_of(f, "samples_doubled"), 80);

  w.play(32, 70, broken);  // so that the first pass is over
  EXPECT_GT(number_of(w.first(), "samples_drawn"), static_cast<double>(drawn));
}

TEST(Overlap, AWorkerThatOthersFollowIsNotToBlameAlone) {
  Watched w =
      played(kPasses, 20, [&](StepRecord& r) {  // ranks 3 and 6 read half of what rank 0 reads
        for (const std::size_t i : {3U, 6U}) {
          auto own = r.workers[i].indices;
          std::copy_n(r.workers[0].indices.begin(), 2, own.begin());
          HealthyRun::read(r.workers[i], own);
        }
      });
  expect(w, "overlapping-data",
         {.ranks = {0, 3, 6}, .title = "drew samples that had been drawn before"});
}

TEST(Overlap, SeedsOfTheirOwnAreEveryonesOverlap) {
  Watched w(kPasses);
  w.play(0, 20, own_seeds(w.run, true));
  expect(w, "sampler-mismatch", {.count = 8, .also = {"overlapping-data"}});
  EXPECT_GT(number_of(w.first(), "samples_doubled"), 100);
}

TEST(Overlap, IsFoundByRowHashesAlone) {
  for (const bool changed : {false, true}) {  // alike each time, as by a normalization
    Watched w(kPasses);
    const auto broken = own_seeds(w.run, true);
    w.play(0, 31, [&](StepRecord& r) {
      broken(r);
      forget_indices(r);
      for (WorkerRecord& x : r.workers) {
        unset(x, Kind::kSamplerReplicas);
        if (changed) set(x, Kind::kRowsChanged, 4);
      }
    });
    expect(w, "overlapping-data", {.severity = Severity::kWarning});
    EXPECT_TRUE(w.first().remedy.starts_with("Not every rank's sampler")) << w.first().remedy;
  }
}

// Rows of a tensor that all batches share; the batches are never equal.
TEST(Overlap, RowsThatAllWorkersShareAreNoSamples) {
  Watched w = played({.workers = 4, .rows = 16, .data = 4096}, 63, [](StepRecord& r) {
    for (WorkerRecord& x : r.workers) {
      hash_rows(x, [&](std::size_t i) { return 7000 + i; });
      unset(x, Kind::kSamplerReplicas);
    }
    forget_indices(r);
  });
  EXPECT_TRUE(w.findings().empty()) << w.first().title;
  EXPECT_EQ(w.check("overlapping-data").state, State::kNotPossible);
}

// Noise on every row: a sample that is drawn again has another hash.
TEST(Overlap, RowsThatTheProgramChangesAtRandomAreNotJudged) {
  std::uint64_t made = 0;
  Watched w = played({.workers = 4, .rows = 8, .data = 4096}, 63, [&](StepRecord& r) {
    forget_indices(r);
    for (WorkerRecord& x : r.workers) {
      hash_rows(x, [&](std::size_t) { return ++made * 0x9e3779b97f4a7c15ULL; });
      set(x, Kind::kRowsChanged, 8);
    }
  });
  EXPECT_TRUE(w.findings().empty()) << w.first().title;
  EXPECT_EQ(w.check("overlapping-data").state, State::kNotPossible);
}

// A normalization: a sample that is drawn again has the hash that it had.
TEST(Overlap, RowsThatTheProgramChangesAlikePassOnceSomeCameAgain) {
  Watched w = played(kPasses, 100, [](StepRecord& r) {
    forget_indices(r);
    for (WorkerRecord& x : r.workers) set(x, Kind::kRowsChanged, 4);
  });
  EXPECT_TRUE(w.findings().empty()) << w.first().title;
  EXPECT_EQ(w.check("overlapping-data").state, State::kPassed);
}

// The whole batches differ, but half of their rows are the neighbor's.
TEST(Overlap, RowsOfSomeWorkersInBatchesThatDifferAreFound) {
  Watched w = played({.workers = 4, .rows = 8, .data = 4096}, 63, [](StepRecord& r) {
    for (WorkerRecord& x : r.workers) unset(x, Kind::kSamplerReplicas);
    forget_indices(r);
    for (std::size_t i = 0; i < 4; ++i)
      r.workers[1].samples.hashes[i] = r.workers[0].samples.hashes[i];
  });
  expect(w, "overlapping-data", {.ranks = {1}});
}

// From step 30 on, rank 1 is dealt what rank 0 got at the beginning of the pass.
TEST(Overlap, AStreamThatBeginsAnewBeforeItsPassEndsIsNot) {
  const auto stream = [](std::uint64_t steps_again) {
    std::vector<std::vector<std::uint64_t>> first;
    return played({.workers = 2, .rows = 8, .data = 4096}, 63, [=](StepRecord& r) mutable {
      for (WorkerRecord& x : r.workers) {
        unset(x, Kind::kSamplerReplicas);
        unset(x, Kind::kDataLength);
      }
      forget_indices(r);
      first.push_back(r.workers[0].samples.hashes);
      if (r.step < 30 || r.step >= 30 + steps_again) return;
      r.workers[1].samples.hashes = first[r.step - 29];
    });
  };
  expect(stream(3), "overlapping-data", {.severity = Severity::kInfo});
  expect(stream(20), "overlapping-data", {.severity = Severity::kWarning});
}

TEST(Overlap, RecordsThatAreEqualInTheDataSetAreNot) {
  for (const bool indices : {true, false}) {
    expect_quiet(played({.workers = 8, .rows = 4, .data = 4096}, 127, [&](StepRecord& r) {
      for (WorkerRecord& x : r.workers) {
        // A third of the records occurs twice.
        hash_rows(x, [&](std::size_t i) { return x.indices[i] % 3000; });
      }
      if (!indices) forget_indices(r);
      for (WorkerRecord& x : r.workers) unset(x, Kind::kSamplerReplicas);
    }));
  }
}

TEST(Overlap, EqualIndicesOfShardsOfTheirOwnAreNot) {
  expect_quiet(played(kPasses, 31, [](WorkerRecord& x, StepRecord& r) {
    HealthyRun::read(x, r.workers[0].indices);
    for (std::uint64_t& row : x.samples.hashes) row = scramble(row + x.rank);
    set(x, Kind::kBatch, scramble(x.samples.hashes[0]));
    unset(x, Kind::kSamplerReplicas);
    unset(x, Kind::kSamplerRank);
  }));
}

TEST(Overlap, DrawingWithReplacementIsNotJudged) {
  Watched w(kPasses);
  w.diagnoser.hello(who(0, 0), {"h", {{"sampler", "WeightedRandomSampler: length=9"}}, {}});
  w.play(0, 31, [&](StepRecord& r) {
    own_seeds(w.run, true)(r);
    for (WorkerRecord& x : r.workers) unset(x, Kind::kSamplerReplicas);
  });
  EXPECT_TRUE(w.findings().empty());
  EXPECT_EQ(w.check("overlapping-data").state, State::kNotPossible);
}

// Hard examples that a program picks several times out of a batch, different ones in every step.
TEST(Overlap, ASampleThatComesTwiceInAStepOfARankWasDrawnOnce) {
  expect_quiet(played(40, [](StepRecord& r) {
    for (WorkerRecord& x : r.workers) {
      x.indices.push_back(x.indices.front());
      HealthyRun::read(x, x.indices);
    }
  }));
}

// Only rank 0 evaluates after step 23, and draws from the generator that shuffles.
TEST(Overlap, AGeneratorThatOneRankDrewFromIsTheCause) {
  const auto overlap = [](bool seeded) {
    const RunOptions options{.workers = 4, .data = 256};  // 16 steps a pass
    Watched w(options);
    w.play(0, 60, [&](StepRecord& r) {
      if (!seeded) forget_sampler(r);
      for (WorkerRecord& x : r.workers) {
        const bool apart = r.step >= 24 && x.rank == 0;
        set(x, Kind::kRngTorch, 100 + (apart ? 7 : 0) + r.step / 16);
        const std::uint64_t pass = r.step / 16;
        if (apart && pass >= 2) HealthyRun::read(x, w.run.drawn(r.step, x.replica, 5, pass));
        if (!seeded) x.indices.clear();
      }
    });
    return w.first();
  };
  const Finding found = overlap(false);
  EXPECT_EQ(found.check, "overlapping-data");
  EXPECT_EQ(found.suspects,
            "an order that is drawn from torch's global generator: that of rank 0 changed between "
            "steps 23 and 24, the others' did not (a validation or a log on some ranks alone?)");
  EXPECT_EQ(overlap(true).suspects, "") << "a sampler with a seed draws from its own";
}

// Each rank draws with a custom sampler, from all of the data or from its own part.
Watched own_sampler(std::uint64_t last, bool from_all) {
  Watched w(kPasses);
  w.diagnoser.hello(who(0, 0), {.facts = {{"sampler", "ClassBalanced: length=1003"}}});
  w.play(0, last, [&](WorkerRecord& x, StepRecord& r) {
    std::vector<std::uint64_t> rows;
    for (std::uint64_t k = 0; k < 4; ++k) {
      const std::uint64_t drawn = scramble(r.step * 64 + x.rank * 8 + k);
      rows.push_back(from_all ? drawn % 1003 : drawn % 125 * 8 + x.rank);
    }
    HealthyRun::read(x, rows);
    unset(x, Kind::kSamplerReplicas);
    unset(x, Kind::kSamplerRank);
  });
  return w;
}

TEST(Overlap, ASamplerThatRepeatsAsChanceDoesIsInformation) {
  const Watched w = own_sampler(31, true);
  const Finding f = overlap_in(w);
  EXPECT_EQ(f.severity, Severity::kInfo);
  EXPECT_TRUE(f.remedy.starts_with("Nothing, if the sampler is meant")) << f.remedy;
  const Watched begun = own_sampler(6, true);
  EXPECT_TRUE(begun.findings().empty());
  EXPECT_EQ(begun.check("overlapping-data").state, State::kNotTriggered);
  EXPECT_NE(begun.check("overlapping-data").reason.find("by design"), std::string::npos);
}

TEST(Overlap, OfASamplerOfItsOwnWhatOnlyOthersDrewIsAWarning) {
  Watched w(kPasses);
  w.diagnoser.hello(who(0, 0), {.facts = {{"sampler", "Own: length=1003"}}});
  w.play(0, 31, own_seeds(w.run, true));
  EXPECT_EQ(w.first().severity, Severity::kWarning);
}

TEST(Overlap, AMicroBatchThatIsFedTwice) {
  for (const bool indices : {true, false}) {
    Watched w =
        played({.workers = 8, .rows = 4, .data = 4096, .micro_batches = 2}, 6, [&](StepRecord& r) {
          if (r.step >= 4) {
            const auto own = r.workers[3].indices;
            HealthyRun::read(r.workers[3], {own[0], own[1], own[0], own[1]});
          }
          if (!indices) forget_indices(r);
        });
    expect(w, "overlapping-data",
           {.ranks = {3}, .first_step = 4, .title = "the same rows several times within a step"});
    EXPECT_EQ(number_of(w.first(), "rows"), 4);
    EXPECT_EQ(number_of(w.first(), "rows_distinct"), 2);
  }
}

TEST(Overlap, RowsThatASamplerOfTheProgramsOwnRepeatsOnAllRanksAreMeant) {
  const auto repeated = [](bool on_all) {
    Watched w(kPasses);
    w.diagnoser.hello(who(0, 0), {.facts = {{"sampler", "PairedSampler: length=1003"}}});
    w.play(0, 12, [&](WorkerRecord& x, StepRecord&) {
      const auto own = x.indices;
      if (on_all || x.rank == 3) HealthyRun::read(x, {own[0], own[1], own[2], own[0]});
    });
    return overlap_in(w).severity;
  };
  EXPECT_EQ(repeated(true), Severity::kInfo);
  EXPECT_EQ(repeated(false), Severity::kWarning);
}

TEST(Overlap, ALoaderThatIsStuckGivesTheSameBatchAgain) {
  Watched stuck(kPasses);
  stuck.play(0, 20, [&](StepRecord& r) {
    if (r.step >= 10) HealthyRun::read(r.workers[3], stuck.run.drawn(9, 3, 42, 0));
  });
  expect(stuck, "overlapping-data",
         {.ranks = {3},
          .title = "in the step before again from their loader, 11 times of 20",
          .remedy = "a loader that has ended or failed"});
  Watched all(kPasses);
  all.play(0, 20, [&](WorkerRecord& w) {
    HealthyRun::read(w, all.run.drawn(0, w.replica, 42, 0));
    unset(w, Kind::kDataPass);
  });
  EXPECT_TRUE(all.findings().empty()) << "one batch that is overfitted: " << all.first().title;
}

// A stream that k worker processes of each rank's loader each read as a whole.
Watched echoed(std::uint64_t times, bool the_program_repeats) {
  return played(40, [&](StepRecord& r) {
    for (WorkerRecord& x : r.workers) {
      const std::uint64_t batch = r.step / times * 100 + 10 * x.rank;
      HealthyRun::read(x, {batch, batch + 1, batch + 2});
      set(x, Kind::kDataBatch, the_program_repeats ? r.step / times : r.step);
    }
    forget_sampler(r);
    forget_indices(r);
    for (WorkerRecord& x : r.workers) {
      unset(x, Kind::kDataLength);
      x.micro_batches = 1;
    }
  });
}

TEST(Overlap, ProcessesOfALoaderThatDoNotDivideTheirStream) {
  for (const std::uint64_t times : {2U, 3U, 16U}) {
    const Finding f = echoed(times, false).first();
    EXPECT_EQ(f.ranks.size(), 8U);
    EXPECT_NE(f.title.find(std::to_string(times) + " times in a row"), std::string::npos)
        << f.title;
    EXPECT_EQ(number_of(f, "times_in_a_row"), static_cast<double>(times));
    EXPECT_NE(f.remedy.find("get_worker_info"), std::string::npos);
  }
  for (const Finding& f : echoed(2, true).findings()) {
    EXPECT_EQ(f.title.find("in a row from their loader"), std::string::npos) << f.title;
  }
}

TEST(Overlap, ALoaderThatBeginsThePassAgainIsToldHowToResume) {
  Watched w(kPasses);
  w.play(0, 20, [&](StepRecord& r) {
    if (r.step < 10) return;
    for (WorkerRecord& x : r.workers)
      HealthyRun::read(x, w.run.drawn(r.step - 10, x.replica, 42, 0));
  });
  expect(w, "overlapping-data",
         {.count = 8, .title = "drew their own samples again", .remedy = "restart"});
  EXPECT_EQ(value_in(w.first(), "by_the_same_rank"), true);
}

TEST(Overlap, ADataSetOfFewRowsRepeatsThemOnAllWorkers) {
  expect_quiet(played(60, [](StepRecord& r) {
    forget_indices(r);
    for (WorkerRecord& x : r.workers) {
      unset(x, Kind::kSamplerReplicas);
      for (std::size_t i = 0; i < 4; ++i) {
        x.samples.hashes[i] =
            scramble(scramble(r.step * 64 + x.rank * 4 + i) % 10) + (i < 2 ? 0 : x.rank);
      }
    }
  }));
}

TEST(Overlap, MicroBatchesOfTwoPassesInOneStepAreLeftOut) {
  Watched w({.workers = 4, .rows = 4, .data = 160, .micro_batches = 4});
  w.play(0, 60, [&](StepRecord& r) {
    if (r.step % 10 != 0 || r.step == 0) return;
    const std::uint64_t pass = r.step / 10;
    for (WorkerRecord& x : r.workers) {  // three rows of the previous pass, one of this pass
      auto own = w.run.drawn(r.step - 1, x.replica, 42, pass - 1);
      own[3] = w.run.drawn(r.step, x.replica, 42, pass)[3];
      HealthyRun::read(x, own);
      set(x, Kind::kDataBatch, 0);
    }
  });
  EXPECT_TRUE(w.findings().empty()) << w.first().title;
}

// More samples than are remembered; in the second half of the pass each goes to the other rank.
TEST(Overlap, CountsOfLargeDataAreScaledAndUnbiased) {
  constexpr std::uint64_t kRows = 50'000;
  Watched w = played({.workers = 2}, 19, [](WorkerRecord& x, StepRecord& r) {
    x.samples.hashes.resize(kRows);
    hash_rows(x, [&](std::size_t i) {
      return (r.step % 10 * 2 + (x.rank + r.step / 10) % 2) * kRows + i;
    });
    x.samples.rows = kRows;
    x.indices.clear();
    set(x, Kind::kDataPass, 0);
    set(x, Kind::kDataBatch, r.step);
    set(x, Kind::kDataLength, 1'000'000'000);
    set(x, Kind::kBatch, scramble(r.step * 2 + x.rank));
  });
  EXPECT_EQ(number_of(overlap_in(w), "samples_drawn"), 40 * kRows);
  EXPECT_NEAR(number_of(overlap_in(w), "samples_doubled"), 20 * kRows, 0.02 * 20 * kRows);
}

}  // namespace
}  // namespace presum::checks
