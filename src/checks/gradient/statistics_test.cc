// SPDX-License-Identifier: Apache-2.0
// rank-outlier, pair-too-similar, too-consistent, loss-event, token-imbalance.
#include <gtest/gtest.h>

#include <optional>

#include "checks/engine/testing.h"
#include "detect/testing.h"

namespace presum::checks {
namespace {

using detect::Alarm;
using detect::Statistic;
using State = CheckRecord::State;

Alarm alarm(Alarm::Kind kind, Statistic statistic, RankList replicas) {
  Alarm a;
  a.kind = kind;
  a.statistic = statistic;
  a.replicas = std::move(replicas);
  a.first_step = 10;
  a.step = 24;
  a.evidence = 6.2;
  a.effect = 2.1;
  return a;
}

Finding raised(const Alarm& a) {
  Watched w = played(23);
  w.feed(w.run.step(24), {a});
  EXPECT_EQ(w.findings().size(), 1U);
  return w.first();
}

TEST(Statistics, EveryKindOfAlarmHasItsCheck) {
  using K = Alarm::Kind;
  EXPECT_EQ(raised(alarm(K::kOutlier, Statistic::kLoss, {3})).check, "rank-outlier");
  EXPECT_EQ(raised(alarm(K::kOutlier, Statistic::kTokens, {3})).check, "token-imbalance");
  EXPECT_EQ(raised(alarm(K::kPairSimilar, Statistic::kPair, {1, 3})).check, "pair-too-similar");
  EXPECT_EQ(raised(alarm(K::kPairOpposed, Statistic::kPair, {1, 3})).check, "rank-outlier");
  const Finding all = raised(alarm(K::kTooConsistent, Statistic::kMicroBatch, {}));
  EXPECT_EQ(all.check, "too-consistent");
  EXPECT_EQ(all.title, "All 8 ranks differed less than their micro-batches allow");
  EXPECT_EQ(all.severity, Severity::kInfo) << "they read different samples";
  EXPECT_EQ(raised(alarm(K::kTooInconsistent, Statistic::kMicroBatch, {3})).check, "rank-outlier");
  EXPECT_EQ(raised(alarm(K::kEvent, Statistic::kLoss, {3})).check, "loss-event");
}

TEST(Statistics, ThatRanksAreAlikeIsAWarningWhereTheirSamplesAreNotKnown) {
  Watched w = played(23, drop_fingerprints);
  StepRecord record = w.run.step(24);
  drop_fingerprints(record);
  w.feed(record, {alarm(Alarm::Kind::kTooConsistent, Statistic::kMicroBatch, {})});
  expect(w, "too-consistent", {.severity = Severity::kWarning});
}

// One overfitted batch, without a loader.
void same_again(const HealthyRun& run, StepRecord& r) {
  for (WorkerRecord& x : r.workers) {
    HealthyRun::read(x, run.drawn(0, x.replica, 42, 0));
    unset(x, Kind::kDataPass);
  }
}

Finding of_static_data(std::vector<Alarm> alarms, bool one_batch) {
  Watched w;
  const auto broken = [&](StepRecord& r) {
    if (one_batch) same_again(w.run, r);
  };
  w.play(0, 23, broken);
  StepRecord record = w.run.step(24);
  broken(record);
  w.feed(record, std::move(alarms));
  EXPECT_EQ(w.findings().size(), one_batch ? 1U : 2U);
  return w.first();
}

TEST(Statistics, OfDataThatNeverChangeLastingDifferencesAreOneInformation) {
  Alarm near = alarm(Alarm::Kind::kOutlier, Statistic::kLoss, {3});
  const Alarm other = alarm(Alarm::Kind::kOutlier, Statistic::kNorm, {1});
  const Finding told = of_static_data({near, other}, true);
  EXPECT_EQ(told.severity, Severity::kInfo);
  EXPECT_EQ(told.ranks, (RankList{1, 3}));
  EXPECT_EQ(of_static_data({near, other}, false).severity, Severity::kWarning);
  near.effect = -12;
  EXPECT_EQ(of_static_data({near}, true).severity, Severity::kWarning) << "too far for that";
}

// Adversarial training that uses each batch four times.
TEST(Statistics, OfBatchesThatAreReplayedLastingDifferencesAreInformation) {
  const auto replayed = [](std::uint64_t times, std::uint64_t alarms = 1) {
    Watched w;
    const auto again = [&](StepRecord& r) {
      for (WorkerRecord& x : r.workers) {
        HealthyRun::read(x, w.run.drawn(r.step, x.replica, 42, 0));  // perturbed
        set(x, Kind::kDataBatch, r.step / times);
      }
    };
    w.play(0, 39, again);
    for (std::uint64_t i = 0; i < alarms; ++i) {
      StepRecord record = w.run.step(40 + i);
      again(record);
      w.feed(record, {alarm(Alarm::Kind::kOutlier, Statistic::kLoss, {3})});
    }
    return w.first().severity;
  };
  EXPECT_EQ(replayed(4), Severity::kInfo);
  EXPECT_EQ(replayed(1), Severity::kWarning);
  EXPECT_EQ(replayed(4, 7), Severity::kInfo);
  EXPECT_EQ(replayed(4, 9), Severity::kWarning) << "more than four uses of a batch account for";
}

TEST(Statistics, APeakThatIsALittleHigherAloneIsInformation) {
  const auto severity = [](Statistic of, double effect) {
    Watched w;
    Alarm raised = alarm(Alarm::Kind::kOutlier, of, {3});
    raised.effect = effect;
    w.play(0, 23);
    w.feed(w.run.step(24), {raised});
    return w.first().severity;
  };
  EXPECT_EQ(severity(Statistic::kPeak, 1), Severity::kInfo);
  EXPECT_EQ(severity(Statistic::kPeak, 3), Severity::kWarning);
  EXPECT_EQ(severity(Statistic::kNorm, 1), Severity::kWarning);
}

TEST(Statistics, NamesRankStatisticAndNumbers) {
  Alarm a = alarm(Alarm::Kind::kOutlier, Statistic::kNorm, {3});
  a.ratio = 2.02;
  a.high = true;
  const Finding f = raised(a);
  EXPECT_EQ(f.title,
            "Rank 3 had a gradient norm persistently higher than the other ranks': 2.02 times "
            "theirs (2.1 standard deviations)");
  EXPECT_EQ(text_of(f, "statistic"), "norm");
  EXPECT_EQ(number_of(f, "ratio"), 2.02);
  EXPECT_EQ(f.certain_step, 24);
  EXPECT_EQ(f.first_step, 10U);
  EXPECT_EQ(f.severity, Severity::kWarning);
  EXPECT_GT(f.confidence, 0.5);
  EXPECT_LT(f.confidence, 0.95);
}

// Alarms of rank 3, each with its statistic's distance in standard deviations, after steps that
// `broken` changed.
std::string suspects_of(const std::vector<std::pair<Statistic, double>>& statistics,
                        const Break& broken = nothing, RunOptions options = {}) {
  const RankList named = options.workers == 2 ? RankList{0, 1} : RankList{3};
  Watched w(options);
  w.play(0, 23, broken);
  std::vector<Alarm> alarms;
  for (const auto& [statistic, effect] : statistics) {
    Alarm a = alarm(Alarm::Kind::kOutlier, statistic, named);
    a.effect = effect;
    a.high = effect > 0;
    if (statistic == Statistic::kNorm) a.ratio = 2;
    if (statistic == Statistic::kGroupNorm) a.group = 1;
    alarms.push_back(a);
  }
  StepRecord record = w.run.step(24);
  broken(record);
  w.feed(record, alarms);
  EXPECT_EQ(w.findings().size(), 1U);
  return w.first().suspects;
}

// Three layers; those of rank 3 (with two ranks, of rank 0) are this many times the others', and so
// is its loss.
Break scaled(const std::array<double, 3>& factors, double loss = 1) {
  return [=](StepRecord& r) {
    const std::size_t odd = r.workers.size() == 2 ? 0 : 3;
    for (WorkerRecord& w : r.workers) {
      w.grad_norm = 0;
      w.loss = 2 + 0.001 * double(scramble(r.step * 64 + w.replica) % 100);
    }
    r.workers[odd].loss *= loss;
    for (std::uint64_t g = 0; g < 3; ++g) {
      GroupRecord& group = r.groups.emplace_back();
      group.id = g + 1;
      for (std::size_t i = 0; i < r.workers.size(); ++i) {
        const double noise = 1 + 0.1 * (double(scramble(r.step * 64 + g * 16 + i) % 1000) / 1000);
        group.norms.push_back(static_cast<float>(noise * (i == odd ? factors[g] : 1)));
        r.workers[i].grad_norm = std::hypot(r.workers[i].grad_norm, group.norms[i]);
      }
    }
  };
}

// The residual of rank 3 was raised, and then the other statistic.
std::string title_of(const Break& broken, std::optional<Statistic> other = {}) {
  Watched w;
  w.play(0, 23, broken);
  std::uint64_t step = 24;
  for (const Statistic statistic : {Statistic::kResidual, other.value_or(Statistic::kResidual)}) {
    StepRecord record = w.run.step(step++);
    broken(record);
    Alarm a = alarm(Alarm::Kind::kOutlier, statistic, {3});
    a.high = true;
    if (statistic == Statistic::kNorm) a.ratio = 4;
    w.feed(record, {a});
  }
  return w.first().title;
}

TEST(Statistics, ADistanceFromTheNormGivenTheLossSaysTheNormAndComesAfterIt) {
  const std::string residual =
      "Rank 3 had a gradient norm for its loss persistently higher than the other ranks': 2.1 "
      "standard deviations";
  const std::string far = title_of(scaled({4, 4, 4}));
  EXPECT_EQ(far.find(residual + "; its norm is 3.99 times theirs"), 0U) << far;
  EXPECT_EQ(title_of(scaled({1.02, 1.02, 1.02})), residual) << "as long as the others'";
  EXPECT_EQ(title_of(scaled({4, 4, 4}), Statistic::kNorm),
            "Rank 3 had a gradient norm persistently higher than the other ranks': 4 times theirs "
            "(2.1 standard deviations)");
}

TEST(Statistics, AFactorIsNamedWhereEverythingThatItImpliesWasSeen) {
  using enum Statistic;
  const RunOptions four{.micro_batches = 4};
  const auto by_norm = [&](const Break& broken, const RunOptions& options = {}) {
    return suspects_of({{kNorm, 7}}, broken, options);
  };
  const char* not_divided = "a loss that is not divided by the 4 micro-batches of a step";
  EXPECT_EQ(by_norm(scaled({4, 4, 4}), four), not_divided) << "the loss is told as it is";
  EXPECT_EQ(by_norm(scaled({4, 4, 4}, 4), four), not_divided);
  EXPECT_EQ(by_norm(scaled({4, 4, 4}, 2), four), "");
  EXPECT_EQ(by_norm(scaled({0.25, 0.25, 0.25}), four),
            "a loss that is divided by the 4 micro-batches of a step once more");
  EXPECT_EQ(by_norm(scaled({3.5, 3.5, 3.5}), four), "") << "not tightly";
  EXPECT_EQ(by_norm(scaled({4, 4, 2}), four), "") << "not in every layer";
  EXPECT_EQ(by_norm(scaled({4, 4, 4}), {.rows = 8}), "") << "one micro-batch of 8";
  EXPECT_EQ(by_norm(scaled({8, 8, 8}), {.rows = 8}), "") << "the loss is not 8 times the others'";
  EXPECT_EQ(by_norm(scaled({8, 8, 8}, 8), {.rows = 8}),
            "a loss that is summed over the 8 samples of a micro-batch (`reduction=\"sum\"`)");
  EXPECT_EQ(by_norm(scaled({100, 100, 100}, 100), {.rows = 8}),
            "a loss that is summed over the target tokens of a micro-batch (`reduction=\"sum\"`), "
            "100 on average");
  EXPECT_EQ(by_norm(scaled({4, 4, 4}), {.workers = 2, .micro_batches = 4}),
            "rank 0's loss is not divided by the 4 micro-batches of a step, or rank 1's is divided "
            "by the 4 micro-batches of a step once more");
}

TEST(Statistics, SuspectsFitAllThatIsKnown) {
  using enum Statistic;
  EXPECT_EQ(suspects_of({{kDirection, -9}, {kLoss, 5}}).find("other inputs or labels"), 0U);
  EXPECT_EQ(suspects_of({{kDirection, -9}, {kLoss, -5}}).find("other inputs or labels"), 0U);
  EXPECT_EQ(suspects_of({{kDirection, -9}}), "") << "why is not known";
  EXPECT_EQ(suspects_of({{kPeak, 9}}), "single elements that were damaged");
  EXPECT_EQ(suspects_of({{kPeak, -9}}), "");
  EXPECT_EQ(suspects_of({{kPeak, -9}, {kNorm, 9}}), "noise that is added to the gradient");
  const Break always = [](StepRecord& r) {
    for (WorkerRecord& w : r.workers) w.grad_norm *= 1 + 0.1 * double(r.step % 5);
    r.workers[3].grad_norm = 0.1;
  };
  EXPECT_EQ(suspects_of({{kNorm, -8}}, always),
            "a gradient that is clipped before the reduction: its norm is always the same");
  EXPECT_NE(suspects_of({{kGroupNorm, 9}}, scaled({3, 1, 1})).find("alone is scaled"),
            std::string::npos);
  EXPECT_EQ(suspects_of({{kGroupNorm, 9}}, scaled({3, 2, 1})), "") << "two layers";
}

TEST(Statistics, ASignIsTurnedWhereTheGradientIsAsLongAndPointsTheOtherWay) {
  const auto pointing = [](double cosine, double factor) {
    return suspects_of({{Statistic::kDirection, -9}}, [=](StepRecord& r) {
      scaled({factor, factor, factor})(r);
      r.cosine_mean = (21 * 0.5 + 7 * cosine) / 28;
      for (WorkerRecord& w : r.workers) w.cosine_to_others = (6 * 0.5 + cosine) / 7;
      r.workers[3].cosine_to_others = cosine;
    });
  };
  EXPECT_EQ(pointing(-0.5, 1), "a gradient whose sign is turned");
  EXPECT_EQ(pointing(-0.2, 1), "");
  EXPECT_EQ(pointing(0.2, 1), "");
  EXPECT_EQ(pointing(-0.5, 1.5), "");
}

TEST(Statistics, OfTwoRanksNobodyKnowsWhichIsAtFault) {
  Watched w({.workers = 2});
  w.play(0, 23);
  Alarm a = alarm(Alarm::Kind::kOutlier, Statistic::kNorm, {0, 1});
  a.ratio = 3.97;
  w.feed(w.run.step(24), {a});
  EXPECT_EQ(w.first().title,
            "Ranks 0-1 persistently differed in their gradient norm: rank 0's is 3.97 times rank "
            "1's (2.1 standard deviations)");
}

TEST(Statistics, EachSaysHowFarItIs) {
  Watched w = played(23);
  Alarm far = alarm(Alarm::Kind::kOutlier, Statistic::kLoss, {3});
  far.effect = 1234.5;
  far.high = true;
  Alarm small = alarm(Alarm::Kind::kEvent, Statistic::kNorm, {5});
  small.effect = 6.2;
  w.feed(w.run.step(24), {far, small});
  const auto found = w.findings();
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].title,
            "Rank 3 had a loss persistently higher than the other ranks': over 100 standard "
            "deviations");
  EXPECT_EQ(
      found[1].title,
      "Rank 5 had a gradient norm farther above the other ranks' than any before: 6.2 standard "
      "deviations");
}

TEST(Statistics, MapsReplicasToRanks) {
  Watched w;
  for (std::uint32_t r = 0; r < 8; ++r) w.diagnoser.hello(who(100 + 2 * r, r), {"h", {}, {}});
  StepRecord record = w.run.step(24);
  for (WorkerRecord& x : record.workers) x.rank = 100 + 2 * x.replica;
  w.feed(record, {alarm(Alarm::Kind::kOutlier, Statistic::kNorm, {3})});
  EXPECT_EQ(w.first().ranks, RankList{106});
}

TEST(Statistics, TellWhatTheyWatched) {
  Watched w;
  w.play(1, 1);
  EXPECT_EQ(w.check("rank-outlier").state, State::kNotPossible);
  EXPECT_EQ(w.check("pair-too-similar").state, State::kNotPossible);
  detect::StepAlarms alarms;
  alarms.watched[static_cast<std::size_t>(Statistic::kNorm)] = 1;
  alarms.watched[static_cast<std::size_t>(Statistic::kPair)] = 1;
  w.diagnoser.update(w.run.step(2), alarms);
  EXPECT_EQ(w.check("rank-outlier").state, State::kNotTriggered);
  EXPECT_EQ(w.check("pair-too-similar").state, State::kNotTriggered);
  EXPECT_EQ(w.check("loss-event").state, State::kNotPossible);
}

TEST(Statistics, SayThatEqualValuesStandOutNowhere) {
  Watched w = played({.workers = 4}, 4, [](StepRecord& r) {
    for (WorkerRecord& x : r.workers) x.loss = 1;
    r.cosines.assign(6, 0.5F);
  });
  EXPECT_EQ(w.check("loss-event").reason, "All ranks had equal losses so far.");
  EXPECT_EQ(w.check("pair-too-similar").reason, "All pairs had equal cosine similarities so far.");
  Watched none = played({.workers = 4}, 4, [](WorkerRecord& x) { x.loss = kNaN; });
  EXPECT_EQ(none.check("loss-event").reason, "No losses were reported so far.");
  EXPECT_EQ(none.check("pair-too-similar").reason,
            "No pairwise cosine similarities: they need three ranks and sketches.");
}

TEST(Statistics, AnAlarmThatIsRaisedAgainKeepsItsFirstStep) {
  Watched w;
  Alarm again = alarm(Alarm::Kind::kOutlier, Statistic::kLoss, {3});
  w.feed(w.run.step(24), {again});
  again.step = 80;
  again.evidence = 7.5;
  w.feed(w.run.step(80), {again});
  again.statistic = Statistic::kNorm;  // joins it as another signal
  again.first_step = 5;
  again.step = 90;
  w.feed(w.run.step(90), {again});
  expect(w, "rank-outlier", {.last_step = 90});
  EXPECT_EQ(w.first().certain_step, 24);
}

// One rank's loss is too high from step 200 to 394.
TEST(Statistics, AnOutlierLastsAsLongAsItDeviates) {
  detect::Generator steps({8, detect::Null::kNormal, 1}, 3);
  detect::Detector detector{detect::Options{}};
  Diagnoser diagnoser({1, 0, 0});
  for (int s = 0; s < 500; ++s) {
    StepRecord r = steps.next({});
    if (s >= 200 && s < 395) r.workers[2].loss += 1;
    diagnoser.update(r, detector.judge(r));
    if (s != 394 && s != 499) continue;
    ASSERT_EQ(diagnoser.findings().size(), 1U);
    const Finding f = diagnoser.findings()[0].finding;
    EXPECT_EQ(f.ranks, RankList{2});
    EXPECT_GE(f.last_step, 394U);
    EXPECT_LT(f.last_step, 405U) << "and no longer";
  }
}

// ---- tokens

Finding with_tokens(std::uint32_t workers, std::uint64_t of_rank_1,
                    std::vector<std::uint32_t> named) {
  Watched w({.workers = workers});
  const auto broken = [&](StepRecord& r) {
    for (WorkerRecord& x : r.workers) x.tokens = 100 + 10 * ((x.rank + r.step) % 5);
    r.workers[1].tokens = r.workers[1].tokens * of_rank_1 / 100;
  };
  w.play(0, 23, broken);
  StepRecord record = w.run.step(24);
  broken(record);
  Alarm a = alarm(Alarm::Kind::kOutlier, Statistic::kLoss, std::move(named));
  w.feed(record, {a});
  EXPECT_EQ(w.findings().size(), 1U);
  return w.first();
}

TEST(Statistics, AnOutlierWithOtherTokenCountsIsNamedByThem) {
  const Finding four = with_tokens(4, 156, {1});
  EXPECT_EQ(four.check, "token-imbalance");
  EXPECT_EQ(four.title, "Rank 1 had 1.56 times as many target tokens as the others");
  EXPECT_EQ(four.also, Ids{"rank-outlier"});
  EXPECT_EQ(four.severity, Severity::kWarning);
  const Finding two = with_tokens(2, 156, {0, 1});
  EXPECT_EQ(two.title, "Rank 0 had 0.642 times as many target tokens as rank 1");
  EXPECT_EQ(with_tokens(4, 105, {1}).check, "rank-outlier") << "nearly alike";
  EXPECT_EQ(with_tokens(4, 156, {2}).check, "rank-outlier") << "another rank";
}

// Rank 1 deals itself 8, 8, 8, 6, 8 and 2 samples, the others 8.
Break uneven_batches(bool weighted = false) {
  constexpr std::array<std::uint64_t, 6> kRows{8, 8, 8, 6, 8, 2};
  return [=](StepRecord& r) {
    for (WorkerRecord& w : r.workers) {
      w.samples.rows = w.replica == 1 ? kRows[r.step % 6] : 8;
      w.tokens = w.samples.rows;
      if (weighted) w.weight = double(w.samples.rows);
    }
  };
}

TEST(Sizes, ThatChangeAreToldByTheirMeans) {
  const Expected rank_1{.ranks = {1},
                        .severity = Severity::kWarning,
                        .first_step = 0,
                        .title = "Rank 1 had 6.8 samples a step on average of 20, the others 8"};
  expect_quiet(played(18, uneven_batches()));
  expect(played(19, uneven_batches()), "token-imbalance", rank_1);
  expect(
      played({.workers = 2}, 40, uneven_batches()), "token-imbalance",
      {.ranks = {0, 1},
       .title = "Both ranks had different numbers of samples a step: 8 and 6.75 on average of 40"});
  expect(played(40, uneven_batches(true)), "token-imbalance", {.severity = Severity::kInfo});
}

TEST(Sizes, TheLastBatchOfAPassMayBeSmaller) {
  expect_quiet(played(80, [](StepRecord& r) {
    for (WorkerRecord& w : r.workers) {
      w.samples.rows = w.replica == 1 && r.step % 10 == 9 ? 2 : 8;
      w.tokens = w.samples.rows;
    }
  }));
}

TEST(Sizes, ThatChangeAlikeOnAllRanksAreFine) {
  const auto chance = [](bool tokens_alike) {
    return [=](StepRecord& r) {
      for (WorkerRecord& w : r.workers) {
        w.samples.rows = 4 + scramble(r.step * 64 + w.replica) % 9;
        w.tokens = w.samples.rows;
        if (tokens_alike && w.replica == 1) w.samples.rows *= 2;
        if (tokens_alike) w.tokens = 100;
      }
    };
  };
  Watched by_chance = played(700, chance(false));
  for (const Finding& f : by_chance.findings()) EXPECT_EQ(f.severity, Severity::kInfo) << f.title;
  expect_quiet(played(200, chance(true)));  // batches with equally many tokens
}

TEST(Tokens, UnknownCountsAreNotJudged) {
  Watched unknown = played(40, [](StepRecord& r) {
    r.tokens_cv = kNaN;
    for (WorkerRecord& x : r.workers) x.tokens = 0;
  });
  EXPECT_TRUE(unknown.findings().empty());
  EXPECT_EQ(unknown.check("token-imbalance").state, State::kNotPossible);
}

}  // namespace
}  // namespace presum::checks
