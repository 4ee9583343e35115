// SPDX-License-Identifier: Apache-2.0
#include "checks/engine/passes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "checks/engine/testing.h"

namespace presum::checks {
namespace {

using State = CheckRecord::State;

constexpr const char* kTorch = "BatchSampler(DistributedSampler): replicas=4";
constexpr const char* kOwn = "OwnSampler: replicas=4";

using Deal = std::function<std::vector<std::uint64_t>(std::uint64_t place, std::uint32_t rank)>;

// Four ranks that read passes of `steps` steps with four rows each, as `deal` says.
struct Passes {
  explicit Passes(const char* sampler = kTorch, std::uint64_t samples = 800) : length(samples) {
    watched.diagnoser.hello(who(0, 0), {.facts = {{"sampler", sampler}}});
  }

  void play(std::uint64_t number, std::uint64_t steps, const Deal& deal, bool ended = true) {
    for (std::uint64_t place = 0; place < steps; ++place, ++at) {
      StepRecord r = watched.run.step(at);
      for (WorkerRecord& w : r.workers) {
        HealthyRun::read(w, deal(place, w.rank));
        set(w, Kind::kDataLength, length);
        set(w, Kind::kDataPass, number);
        set(w, Kind::kDataBatch, place);
        set(w, Kind::kSamplerEpoch, number);
        set(w, Kind::kSamplerLength, length / 4);
        if (last_ended > 0) set(w, Kind::kDataEnded, last_ended);
      }
      change(r);
      watched.feed(r);
    }
    if (ended) last_ended = number + 1;
    last_pass = number;
    last_batch = steps - 1;
  }
  void close() {
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      watched.diagnoser.farewell(who(rank, rank), last_words(last_pass, last_batch, last_ended));
    }
  }
  std::vector<Finding> found() const {
    auto all = watched.findings();
    std::erase_if(all, [](const Finding& f) { return f.check != "data-coverage"; });
    return all;
  }
  Finding only() const {
    EXPECT_EQ(found().size(), 1U);
    return found().empty() ? Finding{} : found().front();
  }
  State state() const { return watched.check("data-coverage").state; }

  std::uint64_t length;
  std::uint64_t at = 0;
  std::uint64_t last_ended = 0;
  std::uint64_t last_pass = 0;
  std::uint64_t last_batch = 0;
  Break change = nothing;
  Watched watched{{.workers = 4, .rows = 4, .data = 4096}};
};

// Four rows of the rank's share of `length` samples; `each` ranks take turns in a share.
std::vector<std::uint64_t> dealt(std::uint64_t place, std::uint32_t rank, std::uint64_t length,
                                 std::uint64_t each = 4) {
  std::vector<std::uint64_t> out;
  for (std::uint64_t i = 4 * place; i < 4 * place + 4; ++i) {
    out.push_back((i * each + rank) % length);
  }
  return out;
}
std::vector<std::uint64_t> whole(std::uint64_t place, std::uint32_t rank) {
  return dealt(place, rank, 800);
}
// Each share is divided among four again: a rank gets 1/16 of the data.
std::vector<std::uint64_t> twice(std::uint64_t place, std::uint32_t rank) {
  auto out = dealt(place, 0, 800, 16);
  for (std::uint64_t& index : out) index += 4 * rank + rank;
  return out;
}

// This many equal passes until the ranks leave.
Passes closed(const Deal& deal, std::uint64_t steps, std::uint64_t passes = 1,
              const char* sampler = kTorch, std::uint64_t samples = 800,
              const Break& change = nothing) {
  Passes out(sampler, samples);
  out.change = change;
  for (std::uint64_t n = 0; n < passes; ++n) out.play(n, steps, deal);
  out.close();
  return out;
}

TEST(DataCoverage, AWholePassIsQuiet) {
  Passes p;
  p.play(0, 50, whole);
  EXPECT_EQ(p.state(), State::kNotTriggered);
  p.play(1, 50, whole);
  p.close();
  EXPECT_TRUE(p.found().empty());
  EXPECT_EQ(p.state(), State::kPassed);
}

TEST(DataCoverage, DataThatAreDividedTwiceAreToldAtTheEndOfTheFirstPass) {
  Passes p;
  p.play(0, 13, twice);
  p.play(1, 1, twice);
  const Finding f = p.only();
  EXPECT_EQ(f.severity, Severity::kWarning);
  EXPECT_NE(f.title.find("drew 1/4 of the data"), std::string::npos) << f.title;
  EXPECT_EQ(number_of(f, "drawn_one_in"), 4);
  EXPECT_EQ(f.ranks, (RankList{0, 1, 2, 3}));
  EXPECT_NEAR(number_of(f, "samples_left_out"), 600, 10);
  EXPECT_EQ(f.first_step, 0U);
  EXPECT_EQ(f.last_step, 12U);
}

TEST(DataCoverage, TheLastPassIsJudgedWhenTheWorkersLeave) {
  Passes p;
  p.play(0, 13, twice);
  EXPECT_TRUE(p.found().empty());
  p.close();
  EXPECT_EQ(p.found().size(), 1U);
}

TEST(DataCoverage, AFarewellMayComeBeforeTheLastStepsAreJudged) {
  Passes p;
  p.last_batch = 49;
  p.last_ended = 1;
  p.play(0, 20, whole);
  p.last_batch = 49;
  p.close();
  EXPECT_TRUE(p.found().empty());
  Passes q;
  q.last_batch = 12;
  q.last_ended = 1;
  q.close();
  q.last_ended = 0;
  q.play(0, 13, twice);
  EXPECT_EQ(q.only().last_step, 12U);
}

TEST(DataCoverage, APassThatIsBrokenOffIsNotJudged) {
  Passes p;
  p.play(0, 13, twice, false);
  p.play(1, 13, twice, false);
  p.close();
  EXPECT_TRUE(p.found().empty());
  EXPECT_NE(p.state(), State::kPassed);
}

TEST(DataCoverage, ATailThatIsNeverDrawnIsNamed) {
  const Finding f = closed(whole, 40, 2).only();  // 640 of 800
  EXPECT_NE(f.title.find("end of the data"), std::string::npos) << f.title;
  EXPECT_EQ(number_of(f, "from_index"), 640);
  EXPECT_EQ(number_of(f, "samples_left_out"), 160);
  EXPECT_EQ(number_of(f, "samples_never_drawn"), 160);
  EXPECT_EQ(number_of(f, "passes"), 2);
}

TEST(DataCoverage, OtherSamplesInEachPassAreDrawnAfterAll) {
  Passes p;
  p.play(0, 40, whole);
  p.play(1, 40, [](std::uint64_t place, std::uint32_t rank) {
    auto out = whole(place, rank);
    for (std::uint64_t& index : out) index = 799 - index;
    return out;
  });
  p.close();
  EXPECT_EQ(number_of(p.only(), "samples_never_drawn"), 0);
}

TEST(DataCoverage, DroppedAndFilledUpBatchesAreQuiet) {
  // three batches per rank less than a whole step are left out
  const Passes dropped = closed(whole, 50, 1, kTorch, 811);
  EXPECT_TRUE(dropped.found().empty());
  EXPECT_EQ(dropped.state(), State::kPassed);
  const auto filled = [](std::uint64_t place, std::uint32_t rank) {
    return dealt(place, rank, 790);
  };
  EXPECT_TRUE(closed(filled, 50, 1, kTorch, 790).found().empty());
}

TEST(DataCoverage, ASamplerOfTheProgramsOwnIsNotJudgedByOnePass) {
  Passes once(kOwn);
  once.play(0, 20, whole);  // as after a restart
  once.play(1, 50, whole);
  once.play(2, 50, whole);
  once.close();
  EXPECT_TRUE(once.found().empty());
  EXPECT_EQ(closed(whole, 40, 2, kOwn).only().severity, Severity::kInfo) << "as it deals them";
  EXPECT_EQ(closed(twice, 13, 2, kOwn).only().severity, Severity::kWarning);
  const Break says_so = [](StepRecord& r) {
    for (WorkerRecord& w : r.workers) set(w, Kind::kSamplerLength, 50);
  };
  const Finding quarter = closed(twice, 13, 2, kOwn, 800, says_so).only();
  EXPECT_EQ(quarter.severity, Severity::kInfo) << "its own length is a quarter";
  EXPECT_EQ(quarter.title.find("divided twice"), std::string::npos) << quarter.title;
}

TEST(DataCoverage, APartOfTheDataIsAllThatSomeSamplersAreAbout) {
  EXPECT_TRUE(closed(twice, 13, 1, "SubsetRandomSampler: length=200").found().empty());
  EXPECT_TRUE(closed(twice, 13, 3, "BatchSampler(RandomSampler)").found().empty());
  const char* goes_on = "SkipBatchSampler(BatchSampler(RandomSampler)): replicas=4";
  EXPECT_TRUE(closed(whole, 13, 1, goes_on).found().empty());
}

TEST(DataCoverage, RowsThatLoadersDealtAndNobodyTrainedOnAreNamed) {
  const auto half = [](std::uint64_t place, std::uint32_t rank) {
    return dealt(place, rank, 800, 8);  // every other sample, as if 8 shared them
  };
  const auto of = [&](Kind kind) {
    const Break change = [kind](WorkerRecord& w, StepRecord& r) {
      if (r.step > 0) set(w, kind, 4);  // of the previous batch
    };
    return closed(half, 25, 1, kTorch, 800, change).only();
  };
  const Finding chosen = of(Kind::kRowsPassedOver);
  EXPECT_EQ(chosen.severity, Severity::kInfo);
  EXPECT_EQ(number_of(chosen, "rows_passed_over"), 384);
  EXPECT_EQ(number_of(chosen, "samples_left_out"), 400);
  const Finding cut = of(Kind::kRowsCut);
  EXPECT_EQ(cut.severity, Severity::kWarning);
  EXPECT_EQ(number_of(cut, "rows_cut"), 384);
  EXPECT_EQ(cut.title.find("divided twice"), std::string::npos) << cut.title;
}

TEST(DataCoverage, IsNotJudgedWhereTheWrapperReducesNothing) {
  EXPECT_EQ(closed(twice, 13, 2).found().size(), 1U);
  for (const bool equal : {true, false}) {
    const auto own_steps = [equal](StepRecord& r) {
      for (WorkerRecord& x : r.workers) {
        x.number = {.window = 0, .unreduced = r.step};
        x.use = StepUse::kUsed;
        x.states = {{1, StateHash::Kind::kParameters, equal ? r.step : 4 * r.step + x.rank}};
      }
      r.distinct_gradients = 4;
    };
    const Passes p = closed(twice, 13, 3, kTorch, 800, own_steps);
    EXPECT_TRUE(p.found().empty());
    EXPECT_EQ(p.state(), State::kNotPossible);
  }
}

TEST(DataCoverage, ManyPassesAreFollowedUpToALimit) {
  Passes p;
  std::uint64_t more = 0;
  p.change = [&](WorkerRecord& w) {
    // each rank is in its own pass
    set(w, Kind::kDataPass, w.rank + more);
  };
  for (std::uint64_t n = 0; n < 1024; ++n) {
    p.length = 800 + n;
    p.play(0, 1, whole, false);
  }
  more = 10;
  for (std::uint64_t n = 0; n < 8; ++n) {
    p.length = 800 + n;
    p.play(0, 1, whole, false);
  }
  EXPECT_TRUE(p.found().empty());
}

TEST(DataCoverage, WithoutIndicesTheRowsAreCounted) {
  const Finding f = closed(twice, 13, 1, kTorch, 800, forget_indices).only();
  EXPECT_NE(f.title.find("drew 1/4"), std::string::npos);
  EXPECT_NEAR(number_of(f, "samples_left_out"), 592, 10);
  EXPECT_TRUE(closed(whole, 50, 1, kTorch, 800, forget_indices).found().empty());
}

TEST(DataCoverage, WhatWasNotSeenIsNotMissing) {
  const Break changes[] = {
      [](StepRecord& r) {
        if (r.step == 20) r.workers.pop_back();
      },
      // One step in five is recorded.
      [](WorkerRecord& w, StepRecord& r) { set(w, Kind::kDataBatch, 5 * r.step); },
      // Some batches were evaluated but not trained on.
      [](WorkerRecord& w, StepRecord& r) { set(w, Kind::kDataBatch, r.step + 3); }};
  for (const Break& change : changes) {
    const Passes p = closed(twice, 50, 1, kTorch, 800, change);
    EXPECT_NE(p.state(), State::kPassed);
    EXPECT_TRUE(p.found().empty());
  }
}

TEST(DataCoverage, ShardsOfTheRanksAreJudgedApart) {
  const auto found = [](std::uint64_t steps) {
    const auto deal = [](std::uint64_t place, std::uint32_t) { return dealt(place, 0, 200, 1); };
    return closed(deal, steps, 1, "RandomSampler: length=200", 200,
                  [](WorkerRecord& w) {
                    set(w, Kind::kDataSubset, 7 + w.rank);
                    for (std::uint64_t& row : w.samples.hashes) row = scramble(row + w.rank);
                    unset(w, Kind::kSamplerReplicas);
                    set(w, Kind::kSamplerLength, 200);
                  })
        .found();
  };
  EXPECT_TRUE(found(50).empty());
  ASSERT_EQ(found(13).size(), 1U) << "one for all ranks";
  EXPECT_EQ(found(13).front().ranks, (RankList{0, 1, 2, 3}));
}

TEST(DataCoverage, PassesOfAWorkerAloneSayNothing) {
  const Passes p = closed(whole, 50, 1, kTorch, 800, [](StepRecord& r) {
    WorkerRecord& w = r.workers[3];  // has a shorter loader
    set(w, Kind::kDataPass, r.step / 10);
    set(w, Kind::kDataBatch, r.step % 10);
    if (r.step >= 10) set(w, Kind::kDataEnded, r.step / 10);
  });
  EXPECT_EQ(number_of(p.only(), "passes"), 1) << "that of all ranks";
  EXPECT_EQ(number_of(p.only(), "samples_left_out"), 160);
}

TEST(SampleSet, IsASet) {
  SampleSet set(130);
  SampleSet other(130);
  EXPECT_EQ(set.end(), 0U);
  for (const std::uint64_t index : {0U, 63U, 64U, 64U}) set.insert(index);
  EXPECT_EQ(set.count(), 3U);
  EXPECT_EQ(set.end(), 65U);
  for (const std::uint64_t index : {64U, 129U}) other.insert(index);
  set.unite(other);
  EXPECT_EQ(set.count(), 4U);
  EXPECT_EQ(set.end(), 130U);
  EXPECT_EQ(SampleSet(0).end(), 0U);
}

}  // namespace
}  // namespace presum::checks
