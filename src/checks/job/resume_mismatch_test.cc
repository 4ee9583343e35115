// SPDX-License-Identifier: Apache-2.0
#include "checks/job/resume_mismatch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "checks/engine/testing.h"

namespace presum::checks {
namespace {

constexpr std::uint32_t kWorkers = 4;
constexpr std::uint64_t kSavedAt = 50;

SnapshotGroup group(std::uint64_t id, float value, std::uint64_t state = 7) {
  SnapshotGroup out{.id = id,
                    .elements = 4,
                    .squares = 4.0 * static_cast<double>(value) * static_cast<double>(value),
                    .parameters = 100 + static_cast<std::uint64_t>(1000 * value),
                    .optimizer = state};
  out.sketch.assign(4, value);
  return out;
}

TrainingSnapshot snapshot(TrainingSnapshot::Kind kind, double steps, std::uint32_t replica) {
  TrainingSnapshot out{.kind = kind,
                       .step = kind == TrainingSnapshot::Kind::kSaved ? kSavedAt : 0,
                       .optimizer_steps = steps,
                       .learning_rate = 0.1};
  out.generators = {{1, 10 + std::uint64_t{replica}}};
  if (replica == 0) out.groups = {group(1, 1), group(2, 2), group(3, 3)};
  return out;
}

std::vector<SnapshotRecord> saved(double steps, std::uint64_t step = kSavedAt) {
  std::vector<SnapshotRecord> out;
  for (std::uint32_t r = 0; r < kWorkers; ++r) {
    SnapshotRecord one{snapshot(TrainingSnapshot::Kind::kSaved, steps, r), {1, 0, 0}, r};
    one.step = step;
    out.push_back(one);
  }
  return out;
}

class Continued {
 public:
  Continued() {
    prior_.saved = saved(50);
    prior_.workers = kWorkers;
  }

  template <class Change>
  Continued& begins(const Change& change, double steps = 50, std::uint32_t workers = kWorkers) {
    if (!given_) rule_.resumes(prior_);
    given_ = true;
    for (std::uint32_t r = 0; r < workers; ++r) {
      TrainingSnapshot one = snapshot(TrainingSnapshot::Kind::kBegun, steps, r);
      change(one, r);
      rule_.begins({.replica = r, .rank = r, .replicas = workers}, one, roster_, log_);
    }
    return *this;
  }
  PriorRun& prior() { return prior_; }
  void update(const StepRecord& record) {
    const auto read = batches(record);
    passes_.see(record);
    rule_.update({record, read, {}, {}, roster_, draws_, {}, {}, {}}, log_);
    end_passes();
  }
  void farewell(std::uint32_t rank, const FinalState& last) {
    passes_.farewell(rank, last);
    end_passes();
  }
  std::vector<Signal> found() const { return log_.signals(); }
  Signal only() const {
    EXPECT_EQ(found().size(), 1U);
    return found().empty() ? Signal{} : found().front();
  }
  CheckRecord state() const { return log_.record(&kResumeMismatch); }
  void expect_unknown() const {
    EXPECT_TRUE(found().empty());
    EXPECT_EQ(state().state, CheckRecord::State::kNotPossible);
  }
  Roster& roster() { return roster_; }

 private:
  void end_passes() {
    for (const Pass& pass : passes_.take_over()) rule_.pass_over(pass, roster_, log_);
  }

  PriorRun prior_;
  bool given_ = false;
  Resume rule_;
  Roster roster_;
  SignalLog log_;
  Draws draws_;
  Passes passes_;
};

constexpr auto kNothing = [](TrainingSnapshot&, std::uint32_t) {};

// A layer with a different value, or state.
auto with_layer(std::size_t at, const SnapshotGroup& other) {
  return [at, other](TrainingSnapshot& m, std::uint32_t r) {
    if (r == 0) m.groups[at] = other;
  };
}

TEST(Resume, WhatGoesOnAsItWasLeftPasses) {
  Continued run;
  EXPECT_TRUE(run.begins(kNothing).found().empty());
  EXPECT_EQ(run.state().state, CheckRecord::State::kPassed);
}

// A program that saves after the monitor is closed.
TEST(Resume, WhatTheRecordingLeftIsHeldAgainstToo) {
  const auto goes_on = [](const auto& change) {
    Continued run;
    for (SnapshotRecord& one : run.prior().saved) one.kind = TrainingSnapshot::Kind::kLeft;
    return run.begins(change).found();
  };
  EXPECT_TRUE(goes_on(kNothing).empty());
  const auto others = goes_on(with_layer(1, group(2, 9)));
  ASSERT_EQ(others.size(), 1U);
  EXPECT_NE(
      sentence_of(others[0]).find("different weights than were left after 50 optimizer steps"),
      std::string::npos)
      << sentence_of(others[0]);
  const auto generators = [](TrainingSnapshot& m, std::uint32_t r) {
    if (r == 1) m.generators.front().value ^= 1;
  };
  EXPECT_TRUE(goes_on(generators).empty()) << "drawn from before it was saved";
}

TEST(Resume, OtherWeightsAreNamedWithTheirDistance) {
  Continued run;
  run.begins(with_layer(1, group(2, 2.02F)));
  const Signal found = run.only();
  EXPECT_EQ(found.severity, Severity::kCritical);
  EXPECT_NE(sentence_of(found).find("different weights than were saved after 50 optimizer steps"),
            std::string::npos);
  EXPECT_TRUE(found.everyone);
  EXPECT_NEAR(number_of(found, "apart_percent"), 1, 0.01);
  EXPECT_EQ(number_of(found, "layers_of"), 3);
}

TEST(Resume, AnotherCheckpointIsRecognised) {
  Continued run;
  auto earlier = saved(40, 40);
  earlier.front().groups = {group(1, 4), group(2, 5), group(3, 6)};
  run.prior().saved.insert(run.prior().saved.begin(), earlier.begin(), earlier.end());
  run.begins([&](TrainingSnapshot& m, std::uint32_t r) {
    if (r == 0) m.groups = earlier.front().groups;
  });
  EXPECT_EQ(text_of(run.only(), "as_saved_after"), "40 optimizer steps");
}

TEST(Resume, AnotherOptimizerStateIsNamed) {
  Continued run;
  run.begins(with_layer(2, group(3, 3, 8)));
  EXPECT_NE(sentence_of(run.only()).find("a different optimizer state"), std::string::npos);
}

TEST(Resume, RanksWithOtherGeneratorsThanTheRest) {
  Continued run;
  run.begins([](TrainingSnapshot& m, std::uint32_t r) {
    if (r == 2) m.generators = {{1, 99}};
  });
  EXPECT_EQ(run.only().ranks, Ranks{2});
  EXPECT_EQ(run.only().severity, Severity::kWarning);
  Continued drawn;  // loaders drew since the saved start, but not on rank 2
  drawn.begins([](TrainingSnapshot& m, std::uint32_t r) {
    const std::uint64_t began = m.generators.front().value + (r == 2 ? 1 : 0);
    m.generators = {{1, 99}, {(1 << 16) + 1, began}};
  });
  EXPECT_EQ(drawn.only().ranks, Ranks{2});
  Continued all;
  all.begins([](TrainingSnapshot& m, std::uint32_t) { m.generators = {{1, 99}}; });
  EXPECT_TRUE(all.found().empty()) << "a loader may have drawn";
}

TEST(Resume, AWarmStartIsNotJudged) {
  Continued run;
  run.begins(with_layer(0, group(1, 9)), 0);
  run.expect_unknown();
}

TEST(Resume, SavedWeightsWithANewOptimizerAreInformation) {
  Continued run;
  run.begins(kNothing, 0);
  EXPECT_EQ(run.only().severity, Severity::kInfo);
  EXPECT_NE(sentence_of(run.only()).find("saved after 50 optimizer steps, and a new optimizer"),
            std::string::npos);
  Continued uncounted;  // as with momentum
  uncounted.prior().saved = saved(kNaN);
  uncounted.begins(
      [](TrainingSnapshot& m, std::uint32_t) {
        for (SnapshotGroup& g : m.groups) g.optimizer = 0;
      },
      kNaN);
  EXPECT_EQ(uncounted.only().severity, Severity::kInfo);
}

TEST(Resume, OfSeveralSnapshotsAtAStepAnyMayFit) {
  for (const bool averaged_last : {false, true}) {
    Continued run;
    std::vector<SnapshotRecord> averaged = saved(50);
    averaged.front().groups = {group(1, 1.5F), group(2, 2.5F), group(3, 3.5F)};
    auto& first = averaged_last ? run.prior().saved : averaged;
    auto& last = averaged_last ? averaged : run.prior().saved;
    for (SnapshotRecord& one : last) one.number = 1;
    std::vector<SnapshotRecord> both = first;
    both.insert(both.end(), last.begin(), last.end());
    run.prior().saved = both;
    EXPECT_TRUE(run.begins(kNothing).found().empty()) << averaged_last;
    EXPECT_EQ(run.state().state, CheckRecord::State::kPassed);
  }
}

TEST(Resume, AnotherFormatIsASettingAsFarAsItRounds) {
  const auto with = [](std::uint16_t formats, float third) {
    Continued run;
    for (SnapshotRecord& one : run.prior().saved) {
      for (SnapshotGroup& g : one.groups) g.formats = 1;
    }
    run.begins([&](TrainingSnapshot& m, std::uint32_t) {
      for (SnapshotGroup& g : m.groups) {
        g.formats = formats;
        g.parameters += 1;
      }
      if (!m.groups.empty()) m.groups[2].sketch.assign(4, third);
    });
    return run.found();
  };
  const auto rounded = with(4, 3.005F);  // bf16
  ASSERT_EQ(rounded.size(), 1U);
  EXPECT_EQ(rounded.front().severity, Severity::kInfo);
  EXPECT_EQ(text_of(rounded.front(), "settings_changed"), "the parameters' dtype");
  EXPECT_EQ(with(4, 3.1F).front().severity, Severity::kCritical);
  EXPECT_EQ(with(0, 3).front().severity, Severity::kCritical) << "not known to be another";
  EXPECT_EQ(with(1, 3).front().severity, Severity::kCritical) << "of one format every bit counts";
}

TEST(Resume, SumsOfManyElementsInAnotherOrderAreTheSame) {
  const auto apart = [](std::uint64_t elements, float relative) {
    Continued run;
    const auto cut = [&](SnapshotGroup& g, std::uint32_t shard) {
      g.elements = elements;
      g.shard = shard;
      g.parameters += shard;
    };
    for (SnapshotRecord& one : run.prior().saved) {
      for (SnapshotGroup& g : one.groups) cut(g, 1);
    }
    run.begins([&](TrainingSnapshot& m, std::uint32_t) {
      for (SnapshotGroup& g : m.groups) {
        cut(g, 2);
        g.sketch[0] *= 1 + relative;
      }
    });
    return !run.found().empty();
  };
  EXPECT_FALSE(apart(std::uint64_t{1} << 27, 2e-5F));
  EXPECT_TRUE(apart(std::uint64_t{1} << 27, 2e-4F));
  EXPECT_TRUE(apart(100, 2e-5F));
}

TEST(Resume, OfShardsThoseThatDifferAreNamed) {
  Continued run;
  const auto shard_of = [](std::vector<SnapshotGroup>& groups, std::uint32_t replica) {
    groups = {group(1, static_cast<float>(replica) + 1)};
    groups.front().shard = replica + 1;
  };
  for (SnapshotRecord& one : run.prior().saved) shard_of(one.groups, one.replica);
  run.begins([&](TrainingSnapshot& m, std::uint32_t r) {
    shard_of(m.groups, r);
    if (r == 2) m.groups.front().parameters += 1;
  });
  EXPECT_EQ(run.only().ranks, Ranks{2});
  EXPECT_FALSE(run.only().everyone);
}

TEST(Resume, AnotherModelIsNotJudged) {
  Continued run;
  run.begins([](TrainingSnapshot& m, std::uint32_t r) {
    if (r == 0) m.groups = {group(91, 1), group(92, 2)};
  });
  run.expect_unknown();
}

TEST(Resume, AtAnotherStepNothingIsKnown) {
  Continued run;
  run.begins(with_layer(0, group(1, 9)), 51);
  run.expect_unknown();
  Continued same;  // weights
  ASSERT_EQ(same.begins(kNothing, 1).found().size(), 1U);
  EXPECT_EQ(same.only().severity, Severity::kInfo);
  EXPECT_NE(sentence_of(same.only()).find("that counts 1 optimizer step"), std::string::npos);
}

TEST(Resume, WithoutACountTheWeightsTell) {
  Continued run;
  run.prior().saved = saved(kNaN);
  run.begins(with_layer(2, group(3, 3, 8)), kNaN);
  ASSERT_EQ(run.found().size(), 1U) << "the weights are those that were saved, the state is not";
  Continued other;
  other.prior().saved = saved(kNaN);
  other.begins(with_layer(2, group(3, 4)), kNaN);
  EXPECT_TRUE(other.found().empty());
}

TEST(Resume, AnotherNumberOfWorkersAndRateAreInformation) {
  Continued run;
  run.begins([](TrainingSnapshot& m, std::uint32_t) { m.learning_rate = 0.01; }, 50, 2);
  EXPECT_EQ(run.only().severity, Severity::kInfo);
  EXPECT_EQ(text_of(run.only(), "settings_changed"), "4 to 2 ranks; learning rate 0.1 to 0.01");
}

TEST(Resume, ShardsOfOtherSizesAddUp) {
  Continued run;
  run.prior().saved = saved(50);
  for (SnapshotRecord& one : run.prior().saved) {
    one.groups = {group(1, static_cast<float>(one.replica) + 1)};
    one.groups.front().shard = one.replica + 1;
  }
  const auto resharded = [](float more) {
    return [more](TrainingSnapshot& m, std::uint32_t r) {
      m.groups = {group(1, r == 0 ? 3 : 7 + more)};  // 1 + 2, 3 + 4
      m.groups.front().shard = 11 + r;
      m.groups.front().elements = 8;
      m.groups.front().squares = r == 0 ? 4.0 * (1 + 4) : 4.0 * (9 + 16);
    };
  };
  run.begins(resharded(0), 50, 2);
  ASSERT_EQ(run.found().size(), 1U) << "the number of ranks";
  EXPECT_EQ(run.only().severity, Severity::kInfo);
  Continued off;
  off.prior().saved = run.prior().saved;
  off.begins(resharded(1), 50, 2);
  EXPECT_EQ(off.only().severity, Severity::kCritical);
}

TEST(Resume, ARunThatContinuesNothingIsNotPossible) {
  Resume rule;
  SignalLog log;
  const Roster roster;
  rule.begins({.replicas = 1}, snapshot(TrainingSnapshot::Kind::kBegun, 5, 0), roster, log);
  EXPECT_TRUE(log.signals().empty());
  EXPECT_EQ(log.record(&kResumeMismatch).state, CheckRecord::State::kNotPossible);
}

// ---- samples

constexpr std::uint64_t kLength = 640;
constexpr std::uint64_t kBatch = 2;  // per rank

// The rank's samples in a batch of a pass: 8 in all, in order.
StepRecord step_of(std::uint64_t step, std::uint64_t pass, std::uint64_t batch,
                   std::uint64_t first_index, std::uint64_t contents = 5) {
  StepRecord record = HealthyRun({.workers = kWorkers}).step(step);
  for (std::uint32_t r = 0; r < kWorkers; ++r) {
    WorkerRecord& w = record.workers[r];
    w.micro_batches = 1;
    w.indices.clear();
    for (std::uint64_t i = 0; i < kBatch; ++i) {
      w.indices.push_back((first_index + kBatch * r + i) % kLength);
    }
    w.samples.rows = kBatch;
    set(w, FingerprintKind::kDataPass, pass);
    set(w, FingerprintKind::kDataBatch, batch);
    set(w, FingerprintKind::kDataLength, kLength);
    set(w, FingerprintKind::kDataContents, contents);
  }
  return record;
}

struct GoesOn {
  std::uint64_t index = 0;  // in the data, at its first step
  std::uint64_t steps = 0;  // until the pass ends
  std::uint64_t saved_at = 120;
  std::uint64_t left_at = 130;
  std::uint64_t contents = 5;
  bool ended = true;  // its loader was exhausted
  bool told_at_the_end = false;
  std::string sampler = "DistributedSampler";
};

// A pass of 80 steps began at step 80.
Continued goes_on(const GoesOn& how) {
  Continued run;
  PriorRun& left = run.prior();
  left.saved = saved(50, how.saved_at);
  for (std::uint64_t s = 80; s < how.left_at; ++s) {
    left.draws.see(step_of(s, 1, s - 80, 8 * (s - 80)));
  }
  run.roster().hello({.replicas = kWorkers}, {"host", {{"sampler", how.sampler}}, {}});
  run.begins(kNothing);
  const FinalState last = last_words(0, how.steps - 1, how.ended ? 1 : 0);
  for (std::uint64_t s = 0; s < how.steps; ++s) {
    if (how.told_at_the_end && s + 1 == how.steps) {  // the last step arrives after the farewells
      for (std::uint32_t r = 0; r < kWorkers; ++r) run.farewell(r, last);
    }
    run.update(step_of(s, 0, s, how.index + 8 * s, how.contents));
  }
  if (how.told_at_the_end) return run;
  StepRecord next = step_of(how.steps, 1, 0, 0, how.contents);
  for (WorkerRecord& w : next.workers) set(w, FingerprintKind::kDataEnded, how.ended);
  run.update(next);
  return run;
}

TEST(Resume, APassThatGoesOnWhereItWasSavedIsQuiet) {
  const GoesOn quiet[] = {
      {.index = 8 * 40, .steps = 40},
      {.index = 8 * 40, .steps = 40, .told_at_the_end = true},
      {.index = 8 * 40, .steps = 20, .ended = false},              // an aborted pass is not judged
      {.index = 0, .steps = 80, .saved_at = 160, .left_at = 160},  // a pass after a whole one
  };
  for (const GoesOn& how : quiet) EXPECT_TRUE(goes_on(how).found().empty()) << how.steps;
}

TEST(Resume, SamplesThatAreReplayedAndLostAreCounted) {
  for (const bool told : {false, true}) {  // batches 20 to 59: 20 steps again, 20 never
    const Signal found = goes_on({.index = 8 * 20, .steps = 40, .told_at_the_end = told}).only();
    EXPECT_EQ(found.severity, Severity::kWarning);
    EXPECT_EQ(number_of(found, "samples_again"), 160);
    EXPECT_EQ(number_of(found, "samples_never"), 160);
    EXPECT_EQ(number_of(found, "of_samples"), 640);
    EXPECT_EQ(sentence_of(found),
              "All 4 ranks did not continue where the pass over the data was interrupted: of 640 "
              "samples 160 were drawn again, and 160 never");
  }
}

TEST(Resume, OfASamplerThatLeavesSamplesOutOnlyThoseDrawnAgainCount) {
  const Signal found = goes_on({.index = 8 * 20, .steps = 40, .sampler = "MySampler"}).only();
  EXPECT_TRUE(std::isnan(number_of(found, "samples_never")));
  EXPECT_EQ(sentence_of(found).find("never"), std::string::npos);
  EXPECT_TRUE(goes_on({.index = 8 * 40, .steps = 20, .sampler = "MySampler"}).found().empty());
}

TEST(Resume, APassThatBeginsAnewIsInformation) {
  const Signal found = goes_on({.index = 0, .steps = 80}).only();
  EXPECT_EQ(found.severity, Severity::kInfo);
  EXPECT_EQ(number_of(found, "samples_again"), 320);
  EXPECT_EQ(sentence_of(found),
            "All 4 ranks restarted the interrupted pass over the data: 320 of 640 samples were "
            "drawn again");
}

// Only rank 0 restores its list of files.
TEST(Resume, RanksThatBeginAnewBesideOthersThatGoOnAreNamed) {
  Continued run;
  PriorRun& left = run.prior();
  left.saved = saved(50, 100);
  for (std::uint64_t s = 80; s < 120; ++s) left.draws.see(step_of(s, 1, s - 80, 8 * (s - 80)));
  run.begins(kNothing);
  for (std::uint64_t s = 0; s < 30; ++s) {
    StepRecord record = step_of(s, 0, s, 8 * s);
    record.workers[0].indices = step_of(s, 0, s, 8 * (s + 20)).workers[0].indices;
    run.update(record);
  }
  const Signal found = run.only();
  EXPECT_EQ(found.severity, Severity::kWarning);
  EXPECT_EQ(found.ranks, (Ranks{1, 2, 3}));
  EXPECT_EQ(sentence_of(found),
            "Ranks 1-3 restarted the interrupted pass over the data, rank 0 continued it");
}

// A run whose rate was `before`, is 0.1 at first, and then `after`.
Continued scheduled(std::vector<double> before, double after) {
  Continued run;
  run.prior().rates = std::move(before);
  run.begins(kNothing);
  for (std::uint64_t s = 0; s < 6; ++s) {
    StepRecord record = HealthyRun({.workers = kWorkers}).step(s);
    for (WorkerRecord& w : record.workers) {
      set(w, FingerprintKind::kLearningRate, s == 0 ? 0.1 : after);
    }
    run.update(record);
  }
  return run;
}

TEST(Resume, AScheduleThatWasNotRestoredIsInformation) {
  const Signal found = scheduled({0.097, 0.098, 0.099}, 0.002).only();
  EXPECT_EQ(found.severity, Severity::kInfo);
  EXPECT_NE(sentence_of(found).find("saved, 0.1, and had 0.002"), std::string::npos);
  EXPECT_TRUE(scheduled({0.097, 0.098, 0.099}, 0.101).found().empty());
  EXPECT_TRUE(scheduled({0.04, 0.06, 0.08}, 0.12).found().empty()) << "a steep warm-up goes on";
  EXPECT_TRUE(scheduled({}, 0.002).found().empty()) << "nothing is known";
}

TEST(Resume, OtherSamplesByTheSameNumbersAreInformation) {
  const Signal found = goes_on({.index = 8 * 40, .steps = 40, .contents = 6}).only();
  EXPECT_EQ(found.severity, Severity::kInfo);
  EXPECT_NE(sentence_of(found).find("a different dataset of the same length"), std::string::npos);
}

// ---- what is not known is not said

TEST(Resume, ShardsWithoutSketchesThatAreCutInAnotherWayAreNotKnown) {
  Continued run;
  for (SnapshotRecord& one : run.prior().saved) {
    one.groups = {group(1, 1)};
    one.groups.front().shard = one.replica + 1;
    one.groups.front().sketch.clear();
  }
  run.begins(
      [](TrainingSnapshot& m, std::uint32_t r) {
        m.groups = {group(1, 1)};
        m.groups.front().elements = 8;
        m.groups.front().shard = 11 + r;
        m.groups.front().sketch.clear();
      },
      50, 2);
  run.expect_unknown();
}

TEST(Resume, ASnapshotThatNotAllRanksToldIsNotKnown) {
  Continued run;
  auto& all = run.prior().saved;
  for (SnapshotRecord& one : all) {
    one.groups = {group(1, 1)};
    one.groups.front().shard = one.replica + 1;
  }
  all.pop_back();
  run.begins([](TrainingSnapshot& m, std::uint32_t r) {
    m.groups = {group(1, 1)};
    m.groups.front().shard = r + 1;
  });
  run.expect_unknown();
}

TEST(Resume, AStepThatALaterSegmentCameByAgainIsNotKnown) {
  const auto other = with_layer(0, group(1, 9));
  Continued run;
  run.prior().begun = {{1, 0}, {2, 30}};  // it may have saved other weights at 50
  EXPECT_TRUE(run.begins(other).found().empty());
  Continued from_there;
  from_there.prior().begun = {{1, 0}, {2, 50}};
  EXPECT_EQ(from_there.begins(other).found().size(), 1U);
}

}  // namespace
}  // namespace presum::checks
