// SPDX-License-Identifier: Apache-2.0
// The whole diagnoser: healthy and adversarial runs, missing ranks, ids, coverage, verdict, any
// bytes.
#include "checks/engine/diagnoser.h"

#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>
#include <set>

#include "checks/engine/testing.h"
#include "checks/job/rank_ended.h"

namespace presum::checks {
namespace {

using State = CheckRecord::State;

// ---- runs without a fault

TEST(CleanRun, OfAnySizeHasNoFinding) {
  for (const std::uint32_t workers : {1U, 2U, 3U, 8U, 64U}) {
    for (const std::uint64_t data : {1000U, 100U}) {  // including uneven last batches
      Watched w = played({.workers = workers, .rows = 3, .data = data}, 200);
      EXPECT_TRUE(w.findings().empty()) << workers << ": " << w.first().title;
    }
  }
}

TEST(CleanRun, PassesWhatCanBeLookedAt) {
  Watched w = played({.workers = 8, .rows = 4, .data = 320}, 30);
  std::set<std::string> not_triggered;
  for (const CheckRecord& c : w.diagnoser.checks()) {
    EXPECT_TRUE(c.reason.ends_with('.')) << c.check << ": " << c.reason;
    EXPECT_NE(c.state, State::kFound) << c.check;
    if (c.state == State::kNotTriggered) not_triggered.insert(c.check);
  }
  EXPECT_EQ(not_triggered,
            (std::set<std::string>{"collective-in-loss", "data-coverage", "input-mismatch",
                                   "loss-mismatch", "shared-rng", "token-weight"}));
  EXPECT_EQ(w.check("epoch-not-set").state, State::kPassed);
  EXPECT_EQ(w.check("rank-outlier").state, State::kNotPossible) << "the detectors saw nothing";
}

TEST(CleanRun, NoCheckPassesBeforeItCouldHaveFoundAnything) {
  const auto nothing = [](StepRecord&) {};
  const auto no_loader = [](StepRecord& r) {
    forget_sampler(r);
    forget_indices(r);
    for (WorkerRecord& w : r.workers) unset(w, Kind::kDataClass);
  };
  const auto clips = [](StepRecord& r) {
    for (WorkerRecord& w : r.workers) set(w, Kind::kClipNorm, 0.5);
  };
  const auto rounds = [](StepRecord& r) {
    for (WorkerRecord& w : r.workers) set(w, Kind::kUnchangedShare, 0.1);
  };
  struct Row {
    const char* check;
    RunOptions options;
    Break changed;
    std::uint64_t records;
  };
  const std::vector<Row> rows = {
      {"duplicate-data", {}, nothing, 1},
      {"duplicate-data", {.rows = 1}, nothing, 3},
      {"duplicate-data", {}, no_loader, 6},
      {"epoch-not-set", {.workers = 2, .rows = 4, .data = 32}, nothing, 5},
      {"overlapping-data", {}, nothing, 2},
      {"lost-gradients", {}, nothing, 3},
      {"clip-norm", {}, clips, 2},
      {"zero-gradient", {}, nothing, 1},
      {"zero-gradient", {.workers = 1}, nothing, 3},
      {"no-progress", {}, rounds, 3},
  };
  for (const Row& row : rows) {
    Watched w(row.options);
    for (std::uint64_t step = 0; step < row.records; ++step) {
      EXPECT_NE(w.check(row.check).state, State::kPassed) << row.check << " before step " << step;
      w.play(step, step, row.changed);
    }
    EXPECT_EQ(w.check(row.check).state, State::kPassed) << row.check << " of " << row.records;
    EXPECT_TRUE(w.findings().empty()) << row.check;
  }
}

TEST(CleanRun, WithoutAnyRecordNothingIsPossible) {
  const Diagnoser diagnoser({1, 0, 0});
  const auto checks = diagnoser.checks();
  ASSERT_EQ(checks.size(), catalog().size());
  for (std::size_t i = 0; i < checks.size(); ++i) {
    EXPECT_EQ(checks[i].check, catalog()[i]->id);
    EXPECT_EQ(checks[i].state, State::kNotPossible);
    EXPECT_FALSE(checks[i].reason.empty());
  }
}

TEST(CleanRun, OneWorkerIsToldSo) {
  Watched w = played({.workers = 1}, 30);
  for (const char* check : {"parameter-desync", "optimizer-mismatch", "reduction-error"}) {
    EXPECT_EQ(w.check(check).reason, "There is only one rank, so there is nothing to compare.");
  }
  EXPECT_EQ(w.check("nonfinite-gradient").state, State::kPassed);
  EXPECT_EQ(w.check("zero-gradient").state, State::kPassed);
  EXPECT_EQ(w.check("missing-rank").state, State::kNotPossible);
}

TEST(Adversarial, WorkersThatJoinAreNoFinding) {
  Watched w;
  HealthyRun small({.workers = 4});
  for (std::uint64_t step = 0; step < 20; ++step) w.feed(small.step(step));
  const HealthyRun large({.workers = 8});
  for (std::uint64_t step = 20; step < 40; ++step) {
    StepRecord r = large.step(step);
    for (WorkerRecord& x : r.workers) set(x, Kind::kDataPass, 1);
    w.feed(r);
  }
  for (const Finding& f : w.findings()) EXPECT_NE(f.severity, Severity::kCritical) << f.title;
}

TEST(Adversarial, EveryNthStepRecordedIsNoFinding) {
  Watched w({.workers = 4, .rows = 4, .data = 164});
  for (std::uint64_t step = 0; step < 400; step += 7) w.feed(w.run.step(step));
  EXPECT_TRUE(w.findings().empty()) << w.first().title;
}

TEST(Adversarial, RestartedSegmentsBeginAnew) {
  Watched w;
  w.play(500, 560, [](WorkerRecord& x, StepRecord& r) { x.optimizer_step = r.step - 499; });
  EXPECT_TRUE(w.findings().empty());
}

// ---- missing-rank

void remove(StepRecord& r, std::uint32_t replica) {
  std::erase_if(r.workers, [&](const WorkerRecord& w) { return w.replica == replica; });
  r.workers_seen = static_cast<std::uint32_t>(r.workers.size());
  r.missing_replicas.push_back(replica);
}

TEST(MissingWorker, WhoNeverReported) {
  Watched w = played(9, [](StepRecord& r) { remove(r, 6); });
  expect(w, "missing-rank", {.ranks = {6}, .severity = Severity::kWarning});
  EXPECT_EQ(w.first().title, "Rank 6 never reported");
  EXPECT_EQ(number_of(w.first(), "steps_missing"), 10);
}

TEST(MissingWorker, WhoDiesIsNamedByRankAndHost) {
  Watched w;
  for (std::uint32_t r = 0; r < 8; ++r) {
    w.diagnoser.hello(who(r + 8, r), {"host" + std::to_string(r), {}, {}});
  }
  w.play(0, 9, [](StepRecord& r) {
    for (WorkerRecord& x : r.workers) x.rank = x.replica + 8;
    if (r.step >= 5) remove(r, 2);
  });
  expect(w, "missing-rank", {.ranks = {10}, .first_step = 5});
  EXPECT_EQ(w.first().hosts, Ids{"host2"});
}

TEST(MissingWorker, TwoThatDieFarApartAreTwoFindings) {
  Watched w = played(40, [](StepRecord& r) {
    if (r.step >= 5) remove(r, 2);
    if (r.step >= 30) remove(r, 5);
  });
  EXPECT_EQ(w.ids(), (Ids{"missing-rank", "missing-rank"}));
}

TEST(MissingWorker, PacketsThatPresumDroppedAreInformation) {
  Watched w = played(20, [](StepRecord& r) {
    if (r.step == 5 || r.step == 6) return remove(r, 2);
    if (r.step > 6) r.workers[2].dropped = 2;
  });
  expect(w, "missing-rank", {.severity = Severity::kInfo, .title = "dropped"});
}

TEST(MissingWorker, NothingIsSaidOfWhosePacketsMayStillHaveBeenOnTheWay) {
  expect_quiet(played(20, [](StepRecord& r) {
    if (r.step < 18) return;
    remove(r, 2);
    r.missing_replicas.clear();
  }));
}

// ---- findings as a whole

TEST(Findings, OfAPracticeThatTheProgramAllowsAreInformation) {
  const auto frozen = [](const char* check) {
    Watched w;
    w.diagnoser.hello(who(0, 0), {.facts = {{std::string("allow.") + check, "a test"}}});
    w.play(0, 9, [](StepRecord& r) { set(r.workers[3], FingerprintKind::kMode, 0); });
    return w.first();
  };
  EXPECT_EQ(frozen("mode-mismatch").severity, Severity::kInfo);
  EXPECT_EQ(frozen("mode-mismatch").remedy, "Nothing: the program allows it (a test).");
  EXPECT_EQ(frozen("zero-gradient").severity, Severity::kWarning);
}

TEST(Findings, WhatOneRankAloneAllowsStays) {
  Watched w;
  w.diagnoser.hello(who(0, 0), {.facts = {{"allow.mode-mismatch", "a test"}}});
  w.diagnoser.hello(who(1, 1), {});
  w.play(0, 9, [](StepRecord& r) { set(r.workers[3], FingerprintKind::kMode, 0); });
  EXPECT_EQ(w.first().severity, Severity::kWarning);
  ASSERT_EQ(w.findings().size(), 2U);
  const Finding said = w.findings()[1];
  EXPECT_EQ(said.severity, Severity::kInfo);
  EXPECT_EQ(said.title, "The ranks differ in their environment: allow.mode-mismatch");
  EXPECT_TRUE(said.remedy.ends_with("on only some ranks it has no effect.")) << said.remedy;
}

TEST(Findings, AreWorstFirstAndCarryTheirModel) {
  Watched w;
  w.diagnoser = Diagnoser({3, 2, 1});
  w.play(0, 9, [](StepRecord& r) { set(r.workers[1], Kind::kMode, 0); });
  w.play(10, 19, [](StepRecord& r) { r.workers[5].grad_norm = 0; });
  const auto found = w.findings();
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].check, "zero-gradient");
  EXPECT_EQ(found[1].check, "mode-mismatch");
  EXPECT_EQ(found[0].model.segment, 3U);
  EXPECT_EQ(found[0].model.model_index, 2U);
  EXPECT_EQ(found[0].model.dp_group, 1U);
  EXPECT_FALSE(found[0].remedy.empty());
}

TEST(Findings, AnIdStaysWhileItsFindingGrowsAndMerges) {
  Watched w = played(2, [](StepRecord& r) { r.workers[3].states[0].value ^= 1; });
  const auto before = w.diagnoser.findings();
  w.play(3, 9, [](StepRecord& r) {
    r.workers[3].states[0].value ^= 1;
    set(r.workers[3], Kind::kOptimizerSettings, 1);
  });
  const auto after = w.diagnoser.findings();
  ASSERT_EQ(before.size(), 1U);
  ASSERT_EQ(after.size(), 1U);
  EXPECT_EQ(after[0].finding.check, "optimizer-mismatch");
  EXPECT_EQ(after[0].id, before[0].id);
  w.play(10, 10, [](StepRecord& r) { r.workers[6].grad_norm = 0; });
  std::set<std::uint64_t> ids;
  for (const auto& numbered : w.diagnoser.findings()) ids.insert(numbered.id);
  EXPECT_EQ(ids.size(), 2U);
}

// One of two data-parallel groups, as with pipeline stages or experts.
TEST(Findings, OfAPartOfTheJobNameItsRanks) {
  const auto title = [](const char* world, Kind kind) {
    Watched w({.workers = 2});
    w.hello([&](std::uint32_t) { return WorkerFacts{.facts = {{"world_size", world}}}; });
    w.play(0, 3, [&](WorkerRecord& x) {
      x.states[0].value += x.rank;
      set(x, kind, 40 + x.rank);
    });
    return w.first().title;
  };
  EXPECT_EQ(title("2", Kind::kOptimizerClass), "The ranks differ in their optimizer: class");
  EXPECT_EQ(title("4", Kind::kOptimizerClass), "Ranks 0-1 differ in their optimizer: class");
  EXPECT_EQ(title("2", Kind::kRngTorch), "Both ranks held different parameters");
  EXPECT_EQ(title("4", Kind::kRngTorch), "Ranks 0-1 held different parameters");
}

TEST(Findings, AreTheSameForTheSameRecords) {
  const auto titles = [] {
    Watched w = played(40, [](StepRecord& r) {
      r.workers[3].states[0].value ^= 1;
      HealthyRun::read(r.workers[4], r.workers[2].indices);
    });
    Ids out;
    for (const Finding& f : w.findings()) out.push_back(f.title);
    return out;
  };
  EXPECT_EQ(titles(), titles());
}

// ---- any input

class Noise {
 public:
  explicit Noise(std::uint64_t seed) : random_(seed) {}

  StepRecord record(std::uint64_t step) {
    StepRecord r;
    r.step = step;
    r.workers_expected = static_cast<std::uint32_t>(below(12));
    for (std::uint64_t i = 0, n = below(10); i < n; ++i) r.workers.push_back(worker());
    for (std::uint64_t i = 0, n = below(3); i < n; ++i) {
      r.missing_replicas.push_back(static_cast<std::uint32_t>(value()));
    }
    r.mean_norm = real();
    r.mean_norm_error = real();
    r.tokens_cv = real();
    r.loss_mean = real();
    return r;
  }

  detect::Alarm alarm() {
    detect::Alarm a;
    a.kind = static_cast<detect::Alarm::Kind>(below(6));
    a.statistic = static_cast<detect::Statistic>(below(10));
    for (std::uint64_t i = 0, n = below(3); i < n; ++i) {
      a.replicas.push_back(static_cast<std::uint32_t>(value()));
    }
    a.first_step = value();
    a.step = value();
    a.evidence = real();
    a.effect = real();
    a.group = value();
    return a;
  }

  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }

 private:
  std::uint64_t value() {
    return below(2) == 0 ? below(6) : below(8) == 0 ? random_() : UINT64_MAX;
  }
  double real() {
    constexpr double kInf = std::numeric_limits<double>::infinity();
    const double some[] = {0, 1, -1, kNaN, kInf, -kInf, 1e300, 1e-300, 0.5};
    return some[below(9)];
  }
  WorkerRecord worker() {
    WorkerRecord w;
    w.rank = static_cast<std::uint32_t>(value());
    w.replica = static_cast<std::uint32_t>(value());
    for (double* x : {&w.loss, &w.weight, &w.grad_norm, &w.reduced_norm}) *x = real();
    for (std::uint64_t* x : {&w.tokens, &w.fingerprint, &w.reduced_fingerprint, &w.optimizer_step,
                             &w.dropped, &w.samples.rows}) {
      *x = value();
    }
    w.loss_nonfinite = below(4) == 0;
    w.nonfinite = below(4) == 0 ? value() : 0;
    w.micro_batches = static_cast<std::uint32_t>(value());
    w.samples.thinned = static_cast<std::uint32_t>(below(70));
    for (const FingerprintInfo& k : fingerprint_kinds()) {
      if (below(3) > 0) w.fingerprints.push_back({static_cast<std::uint32_t>(k.kind), value()});
    }
    for (std::uint64_t i = 0, n = below(6); i < n; ++i) w.samples.hashes.push_back(value());
    for (std::uint64_t i = 0, n = below(6); i < n; ++i) w.indices.push_back(value());
    for (std::uint64_t i = 0, n = below(6); i < n; ++i) {
      w.states.push_back({value(), static_cast<StateHash::Kind>(1 + below(2)), value()});
    }
    return w;
  }

  std::mt19937_64 random_;
};

TEST(Fuzz, AnyRecordsLeaveBoundedFindings) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Noise noise(seed);
    Diagnoser diagnoser({1, 0, 0});
    for (std::uint64_t step = 0; step < 200; ++step) {
      std::vector<detect::Alarm> alarms;
      for (std::uint64_t i = noise.below(3); i > 0; --i) alarms.push_back(noise.alarm());
      if (noise.below(9) == 0) {
        diagnoser.hello(
            who(static_cast<std::uint32_t>(noise.below(9)), 1),
            {"h", {{"torch", std::to_string(noise.below(3))}}, {{noise.below(3), 0, "g"}}});
      }
      diagnoser.update(noise.record(step == 199 ? UINT64_MAX : step), {.raised = alarms});
      if (noise.below(9) == 0) {
        diagnoser.farewell(
            who(static_cast<std::uint32_t>(noise.below(9)), 0),
            {noise.below(4), {{noise.below(3), StateHash::Kind::kParameters, noise.below(3)}}});
      }
    }
    const auto found = diagnoser.findings();
    EXPECT_LE(found.size(), 64 * catalog().size());
    std::set<std::uint64_t> ids;
    for (const auto& numbered : found) {
      EXPECT_TRUE(ids.insert(numbered.id).second);
      EXPECT_FALSE(numbered.finding.title.empty());
      EXPECT_LE(numbered.finding.first_step, numbered.finding.last_step);
      EXPECT_LE(numbered.finding.evidence.size(), 64U);
    }
    EXPECT_EQ(diagnoser.checks().size(), catalog().size());
  }
}

TEST(Diagnoser, RanksThatAreInterruptedTogetherMayMissTheLastStep) {
  const auto severity = [](std::uint64_t missing_since, Severity of_end) {
    Watched w;
    w.play(0, 9, [&](StepRecord& r) {
      if (r.step >= missing_since) r.missing_replicas = {1, 3};
    });
    w.diagnoser.ended(RankEnd{.ranks = {0, 1, 2, 3, 4, 5, 6, 7},
                              .everyone = true,
                              .severity = of_end,
                              .how = "ended by KeyboardInterrupt",
                              .last_step = 9});
    for (const Finding& f : w.findings()) {
      if (f.check == "missing-rank") return f.severity;
    }
    return w.first().severity;
  };
  EXPECT_EQ(severity(9, Severity::kInfo), Severity::kInfo);
  EXPECT_EQ(severity(5, Severity::kInfo), Severity::kWarning) << "they were missing before";
}

}  // namespace
}  // namespace presum::checks
