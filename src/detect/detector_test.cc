// SPDX-License-Identifier: Apache-2.0
#include "detect/detector.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <set>

#include "base/hash.h"
#include "detect/testing.h"

namespace presum::detect {
namespace {

using Kind = Alarm::Kind;
using Alarms = std::vector<Alarm>;
using Replicas = std::vector<std::uint32_t>;

// Copies of healthy steps that a test may alter.
class Steps {
 public:
  explicit Steps(std::uint32_t workers, std::uint64_t seed = 1, std::uint32_t micro_batches = 2)
      : generator_({workers, Null::kNormal, micro_batches}, seed) {}
  StepRecord next(const Fault& fault = {}) { return generator_.next(fault); }

 private:
  Generator generator_;
};

void append(Alarms& to, const Alarms& from) { to.insert(to.end(), from.begin(), from.end()); }

template <class Spoil>
Alarms watch(Detector& detector, Steps& steps, int count, Spoil&& spoil) {
  Alarms alarms;
  for (int s = 0; s < count; ++s) {
    StepRecord record = steps.next();
    spoil(record);
    append(alarms, detector.update(record));
  }
  return alarms;
}

Alarms watch(Detector& detector, Steps& steps, int count) {
  return watch(detector, steps, count, [](StepRecord&) {});
}

// With a new detector.
template <class Spoil>
Alarms watch(std::uint32_t workers, int count, Spoil&& spoil) {
  Detector detector({});
  Steps steps(workers);
  return watch(detector, steps, count, spoil);
}

std::set<Replicas> named(const Alarms& alarms) {
  std::set<Replicas> out;
  for (const Alarm& alarm : alarms) out.insert(alarm.replicas);
  return out;
}

// The detector's state without another step.
StepAlarms said(Detector& detector) {
  StepRecord unused;
  unused.workers.emplace_back().use = StepUse::kUnused;
  unused.workers.back().optimizer_step = 1;
  return detector.judge(unused);
}

std::uint64_t watched(Detector& detector, Statistic statistic) {
  return said(detector).watched[static_cast<std::size_t>(statistic)];
}

void scale_norm(StepRecord& record, std::size_t worker, float factor) {
  record.workers[worker].grad_norm *= double{factor};
  record.workers[worker].grad_max *= double{factor};
  for (GroupRecord& group : record.groups) group.norms[worker] *= factor;
}

void remove_worker(StepRecord& record, std::size_t at) {
  record.missing_replicas.push_back(record.workers[at].replica);
  record.workers.erase(record.workers.begin() + std::ptrdiff_t(at));
  for (GroupRecord& group : record.groups) {
    group.norms.erase(group.norms.begin() + std::ptrdiff_t(at));
  }
  record.cosines.clear();
}

// ---- error control

class RunLength : public ::testing::TestWithParam<std::tuple<std::uint32_t, Null>> {};

TEST_P(RunLength, IsAtLeastTheLevel) {
  const auto [workers, null] = GetParam();
  Options options;
  options.level = 50;
  Detector detector(options);
  Generator generator({workers, null, 2}, 3);
  constexpr int kSteps = 20000;
  int alarms = 0;
  for (int s = 0; s < kSteps; ++s) {
    for (const Alarm& alarm : detector.update(generator.next({})))
      alarms += alarm.kind != Kind::kEvent;
  }
  EXPECT_LE(alarms, kSteps / 50);
  EXPECT_GT(alarms, kSteps / 1000);  // a detector that never alarms would pass trivially
}

INSTANTIATE_TEST_SUITE_P(Nulls, RunLength,
                         ::testing::Combine(::testing::Values(2U, 4U, 8U),
                                            ::testing::Values(Null::kNormal, Null::kHeavy,
                                                              Null::kCommon)));

// ---- what is found

struct Expected {
  const char* name;
  Fault fault;
  std::uint32_t workers;
  std::uint32_t micro_batches;
  double median;
};

TEST(Delays, AreAsPromised) {
  using F = Fault::Kind;
  const Expected all[] = {
      {"half a sd", {F::kLoss, 0.5}, 8, 1, 200},   {"1 sd", {F::kLoss, 1}, 8, 1, 62},
      {"2 sd", {F::kLoss, 2}, 8, 1, 20},           {"3 sd", {F::kLoss, 3}, 8, 1, 14},
      {"6 sd", {F::kLoss, 6}, 8, 1, 12},           {"norm x2", {F::kNorm, 2.1}, 8, 1, 25},
      {"pad", {F::kNorm, -4.4}, 8, 1, 12},         {"prompt", {F::kNorm, -0.77}, 8, 1, 90},
      {"pair", {F::kSharedData}, 8, 1, 10},        {"pair of 64", {F::kSharedData}, 64, 1, 8},
      {"repeated of 4", {F::kRepeated}, 8, 4, 20}, {"repeated of 2", {F::kRepeated}, 8, 2, 20},
      {"by all", {F::kRepeatedByAll}, 8, 4, 12},   {"one set", {F::kSameSet}, 8, 4, 12},
      {"two ranks", {F::kLoss, 2}, 2, 1, 42},      {"four ranks", {F::kLoss, 2}, 4, 1, 28},
  };
  for (const Expected& e : all) {
    const std::uint32_t trials = e.workers > 8 ? 5 : 40;
    const SimulatedRun run{e.workers, Null::kNormal, e.micro_batches};
    std::vector<std::optional<Alarm>> alarms(trials);
    for (std::uint32_t i = 0; i < trials; ++i) {
      alarms[i] = first_alarm(run, e.fault, splitmix64(11) + i);
    }
    const Delays d = summarize(alarms, e.fault, e.workers);
    EXPECT_EQ(d.found, trials) << e.name;
    EXPECT_LE(d.median, e.median) << e.name;
    EXPECT_GE(d.median, 3) << e.name;  // evidence from ranks is bounded
    EXPECT_GE(d.right, 0.95) << e.name;
    EXPECT_LE(std::abs(d.first_step_off), 12) << e.name;
  }
}

TEST(Detector, DescribesAnOutlier) {
  Detector detector({});
  Steps steps(8);
  watch(detector, steps, 100);
  const Alarms alarms = watch(detector, steps, 30, [](StepRecord& r) { scale_norm(r, 6, 4); });
  ASSERT_FALSE(alarms.empty());
  const Alarm& alarm = alarms[0];
  EXPECT_EQ(alarm.kind, Kind::kOutlier);
  EXPECT_EQ(alarm.statistic, Statistic::kNorm);
  EXPECT_TRUE(alarm.high);
  EXPECT_EQ(alarm.replicas, Replicas{6});
  EXPECT_NEAR(double(alarm.first_step), 100, 3);
  EXPECT_LE(alarm.step, 112);
  EXPECT_GE(alarm.evidence, 6);
  EXPECT_NEAR(alarm.effect, std::log(4) / 0.33, 1.5);
  EXPECT_NEAR(alarm.ratio, 4, 1.5);
  EXPECT_EQ(alarm.group, 0);  // all groups deviate alike
}

TEST(Detector, SaysWhichGroupDeviates) {
  Detector detector({});
  Steps steps(8);
  watch(detector, steps, 50);
  const Alarms alarms = watch(detector, steps, 60, [](StepRecord& r) {
    r.groups[2].norms[3] *= 4;
    r.workers[3].grad_norm *= 3;
    r.workers[3].grad_max *= 3;
  });
  ASSERT_FALSE(alarms.empty());
  EXPECT_EQ(alarms[0].statistic, Statistic::kNorm);
  EXPECT_EQ(alarms[0].group, 3);  // ids start at 1
}

TEST(Detector, FindsAGroupThatTheWholeNormHides) {
  const Alarms alarms = watch(8, 100, [](StepRecord& r) { r.groups[1].norms[3] *= 4; });
  ASSERT_FALSE(alarms.empty());
  EXPECT_EQ(alarms[0].statistic, Statistic::kGroupNorm);
  EXPECT_EQ(alarms[0].group, 2);
  EXPECT_EQ(named(alarms), std::set<Replicas>{{3}});
}

TEST(Detector, SaysNothingOfAGroupOfPracticallyZeroGradient) {
  const Alarms alarms = watch(8, 100, [](StepRecord& r) {
    for (float& norm : r.groups[1].norms) norm = 1e-8F;
    r.groups[1].norms[3] *= 4;
  });
  EXPECT_TRUE(alarms.empty());
}

TEST(Detector, NamesTwoWorkersThatAreAtFaultAtOnce) {
  const Alarms alarms = watch(8, 100, [](StepRecord& r) {
    r.workers[2].loss += 2;
    scale_norm(r, 5, 0.2F);
    scale_norm(r, 7, 0.2F);
  });
  EXPECT_EQ(named(alarms), (std::set<Replicas>{{2}, {5}, {7}}));
}

class LongFault : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(LongFault, NeverTurnsSuspicionOnTheOthers) {
  for (const Fault& fault : {Fault{Fault::Kind::kLoss, 3}, Fault{Fault::Kind::kNorm, -4.4},
                             Fault{Fault::Kind::kDirection, -3}}) {
    Detector detector({});
    Steps steps(GetParam());
    Alarms alarms;
    for (int s = 0; s < 2000; ++s) append(alarms, detector.update(steps.next(fault)));
    EXPECT_EQ(named(alarms), std::set<Replicas>{{0}});
    EXPECT_GE(alarms.size(), 20);
  }
}

INSTANTIATE_TEST_SUITE_P(Workers, LongFault, ::testing::Values(4U, 8U));

TEST(Detector, NamesAPairAndNotItsEffects) {
  Detector detector({});
  Steps steps(8);
  Alarms alarms;
  for (int s = 0; s < 1000; ++s) {
    append(alarms, detector.update(steps.next({Fault::Kind::kSharedData, 0})));
  }
  ASSERT_FALSE(alarms.empty());
  for (const Alarm& alarm : alarms) {
    EXPECT_EQ(alarm.kind, Kind::kPairSimilar);
    EXPECT_EQ(alarm.replicas, (Replicas{0, 1}));
  }
}

TEST(Detector, NamesAnOpposedPair) {
  const Alarms alarms = watch(6, 30, [](StepRecord& r) { r.cosines.back() = -0.5F; });
  ASSERT_FALSE(alarms.empty());
  EXPECT_EQ(alarms[0].kind, Kind::kPairOpposed);
  EXPECT_EQ(alarms[0].replicas, (Replicas{4, 5}));
  EXPECT_LT(alarms[0].effect, -5);
}

TEST(Detector, NamesBothOfTwoWorkers) {
  const Alarms alarms = watch(2, 60, [](StepRecord& r) { r.workers[1].loss += 3; });
  ASSERT_EQ(alarms.size(), 1);
  EXPECT_EQ(alarms[0].replicas, (Replicas{0, 1}));
  EXPECT_FALSE(alarms[0].high);  // the first rank is below
}

TEST(Detector, OfTwoWorkersTheFirstIsToldOfWhicheverWasSeen) {
  for (const float factor : {0.25F, 4.0F}) {
    Detector detector({});
    Steps steps(2);
    const Alarms alarms =
        watch(detector, steps, 200, [&](StepRecord& r) { scale_norm(r, 1, factor); });
    ASSERT_FALSE(alarms.empty());
    for (const Alarm& alarm : alarms) {
      if (alarm.statistic != Statistic::kNorm) continue;
      EXPECT_EQ(alarm.high, factor < 1);
      EXPECT_EQ(alarm.effect > 0, factor < 1);
      EXPECT_NEAR(alarm.ratio, 1 / factor, 0.2 / factor);
    }
  }
}

TEST(Detector, CoolsDown) {
  Options options;
  options.cooldown = 30;
  Detector detector(options);
  Steps steps(8);
  const Alarms alarms = watch(detector, steps, 400, [](StepRecord& r) { r.workers[4].loss += 3; });
  ASSERT_GE(alarms.size(), 5);
  std::uint64_t last = 0;
  for (const Alarm& alarm : alarms) {
    if (alarm.statistic != Statistic::kLoss || alarm.kind == Kind::kEvent) continue;
    EXPECT_TRUE(last == 0 || alarm.step - last > 30);
    last = alarm.step;
  }
}

// ---- what must not alarm

TEST(Detector, IsSilentForOneWorkerOrNone) {
  Detector detector({});
  Steps steps(1);
  EXPECT_TRUE(watch(detector, steps, 300, [](StepRecord& r) { r.workers[0].loss = kNaN; }).empty());
  EXPECT_TRUE(detector.update(StepRecord{}).empty());
  EXPECT_EQ(watched(detector, Statistic::kLoss), 0);
}

TEST(Detector, IsSilentWhereEverythingIsEqual) {
  Detector detector({});
  Steps steps(8);
  const Alarms alarms = watch(detector, steps, 500, [](StepRecord& r) {
    for (WorkerRecord& w : r.workers) {
      w.loss = 0.5;
      w.grad_norm = 3;
      w.grad_max = 1;
      w.tokens = 64;
      w.cosine_to_others = 0.25;
      for (auto& m : w.micro) m.loss = 0.5;
    }
    for (GroupRecord& g : r.groups) std::ranges::fill(g.norms, 2.0F);
    std::ranges::fill(r.cosines, 0.25F);
  });
  EXPECT_TRUE(alarms.empty());
  for (const auto s : {Statistic::kLoss, Statistic::kNorm, Statistic::kPair, Statistic::kTokens,
                       Statistic::kMicroBatch, Statistic::kGroupNorm, Statistic::kResidual}) {
    EXPECT_EQ(watched(detector, s), 0);
  }
}

TEST(Detector, IsSilentForCoarseValuesWithManyTies) {
  EXPECT_TRUE(watch(8, 3000, [](StepRecord& r) {
                for (WorkerRecord& w : r.workers) {
                  w.loss = std::round(w.loss);
                  w.grad_norm = std::exp2(std::round(std::log2(w.grad_norm)));
                  for (auto& m : w.micro) m.loss = std::round(m.loss);
                }
                for (float& c : r.cosines) c = std::round(c * 20) / 20;
              }).empty());
}

TEST(Detector, IsSilentWhileAMetricDriftsAThousandfold) {
  EXPECT_TRUE(watch(8, 4000, [](StepRecord& r) {
                const double factor = std::pow(1000, -double(r.step) / 4000);
                for (std::size_t i = 0; i < 8; ++i) {
                  scale_norm(r, i, static_cast<float>(1 / factor));
                  r.workers[i].loss *= factor;
                  for (auto& m : r.workers[i].micro) m.loss *= factor;
                }
              }).empty());
}

TEST(Detector, IsSilentForDifferencesThatDoNotMatter) {
  Detector detector({});
  Steps steps(8);
  const auto nearly_equal = [](StepRecord& r) {
    for (WorkerRecord& w : r.workers) {
      const bool odd = w.replica == 3;
      w.loss = 2 + 1e-4 * (w.loss - 2) + (odd ? 0.004 : 0);  // 0.2 %
      w.grad_norm = std::pow(w.grad_norm, 0.01) * (odd ? 1.02 : 1);
      w.grad_max = w.grad_norm / 20;
      w.micro.clear();
    }
    for (GroupRecord& g : r.groups) std::ranges::fill(g.norms, 2.0F);
  };
  EXPECT_TRUE(watch(detector, steps, 2000, nearly_equal).empty());
  EXPECT_EQ(watched(detector, Statistic::kLoss), 2000);
}

TEST(Detector, IsSilentWhileWorkersJoinAndLeave) {
  Detector detector({});
  Alarms alarms;
  std::uint64_t step = 0;
  for (const std::uint32_t workers : {4U, 8U, 3U, 1U, 2U, 8U}) {
    Steps steps(workers);
    append(alarms, watch(detector, steps, 200, [&](StepRecord& r) {
             r.step = step++;
             if (workers > 2 && step % 7 == 0) remove_worker(r, step % workers);
           }));
  }
  EXPECT_TRUE(alarms.empty());
  Steps steps(8, 9);
  alarms = watch(detector, steps, 20, [&](StepRecord& r) {
    r.step = step++;
    scale_norm(r, 1, 10);
  });
  EXPECT_EQ(named(alarms), std::set<Replicas>{{1}});
}

// ---- unknown and hostile values

TEST(Detector, RanksThoseThatAreThere) {
  const Alarms alarms = watch(8, 60, [](StepRecord& r) {
    r.workers[2].loss = kNaN;
    r.workers[3].grad_norm = std::numeric_limits<double>::infinity();
    r.workers[4].grad_norm = 0;
    for (float& c : r.cosines) {
      if (&c - r.cosines.data() < 7) c = NAN;
    }
    r.workers[5].loss += 2;
  });
  EXPECT_EQ(named(alarms), std::set<Replicas>{{5}});
}

TEST(Detector, KeepsTheEvidenceOfAWorkerThatIsAway) {
  Detector detector({});
  Steps steps(8);
  const auto spoil = [](StepRecord& r) { scale_norm(r, 5, 10); };
  EXPECT_TRUE(watch(detector, steps, 6, spoil).empty());
  EXPECT_TRUE(watch(detector, steps, 200, [](StepRecord& r) { remove_worker(r, 5); }).empty());
  const Alarms alarms = watch(detector, steps, 6, spoil);
  ASSERT_FALSE(alarms.empty());
  EXPECT_EQ(alarms[0].replicas, Replicas{5});
}

TEST(Detector, TakesRecordsThatDoNotFit) {
  std::mt19937 random(4);
  Detector detector({});
  Steps steps(6);
  watch(detector, steps, 400, [&](StepRecord& r) {
    const auto pick = [&] { return r.workers.empty() ? 0 : random() % r.workers.size(); };
    switch (random() % 10) {
      case 0:
        r.workers[pick()].replica = 1000;
        break;
      case 1:
        std::swap(r.workers[0], r.workers[1]);
        break;
      case 2:
        r.workers.clear();
        break;
      case 3:
        for (GroupRecord& g : r.groups) g.norms.resize(random() % 9);
        break;
      case 4:
        r.cosines.resize(random() % 40, NAN);
        break;
      case 5:
        r.workers[pick()].micro.resize(random() % 3000);
        break;
      case 6:
        r.workers[pick()].loss = std::numeric_limits<double>::max();
        r.workers[pick()].grad_norm = -1;
        break;
      case 7:
        for (std::uint64_t g = 0; g < 100; ++g) r.groups.push_back({g * 77, 1, 1, 0, {1, 2}, {}});
        break;
      case 8:
        r.workers_expected = random() % 2 == 0 ? 0xFFFFFFFFU : 0;
        break;
      default:
        r.workers[pick()].micro.assign(2, {std::numeric_limits<double>::max(), 1, 0});
    }
  });
  EXPECT_GT(watched(detector, Statistic::kNorm), 0);
}

TEST(Detector, WatchesAThousandWorkers) {
  Detector detector({});
  std::mt19937_64 random(8);
  std::normal_distribution<double> normal;
  Alarms alarms;
  for (std::uint64_t s = 0; s < 40; ++s) {
    StepRecord r;
    r.step = s;
    r.workers_expected = 1024;
    for (std::uint32_t i = 0; i < 1024; ++i) {
      WorkerRecord& w = r.workers.emplace_back();
      w.replica = i;
      w.loss = 2 + 0.5 * normal(random) + (i == 700 && s >= 10 ? 2 : 0);
      w.grad_norm = std::exp(0.3 * normal(random));
      w.grad_max = w.grad_norm * std::exp(0.2 * normal(random));
      w.cosine_to_others = 0.01 * normal(random);
    }
    append(alarms, detector.update(r));
  }
  EXPECT_EQ(named(alarms), std::set<Replicas>{{700}});
  EXPECT_LE(alarms[0].step, 20);
}

// ---- history

TEST(Events, AreSingleStepsFarOutsideEverythingSeen) {
  Detector detector({});
  Steps steps(8);
  const auto toxic = [](StepRecord& r) {
    r.workers[1].loss += 8;
    for (auto& m : r.workers[1].micro) m.loss += 8;
  };
  EXPECT_TRUE(watch(detector, steps, 20).empty());
  EXPECT_TRUE(watch(detector, steps, 1, toxic).empty());  // it does not know the run yet
  EXPECT_TRUE(watch(detector, steps, 150).empty());
  const Alarms alarms = watch(detector, steps, 1, toxic);
  ASSERT_EQ(alarms.size(), 1);
  EXPECT_EQ(alarms[0].kind, Kind::kEvent);
  EXPECT_EQ(alarms[0].statistic, Statistic::kLoss);
  EXPECT_EQ(alarms[0].replicas, Replicas{1});
  EXPECT_NEAR(alarms[0].evidence, 16, 6);
  EXPECT_TRUE(watch(detector, steps, 200).empty());
}

void make_one_gradient(StepRecord& r, double cosine, double spread) {
  r.cosine_mean = cosine;
  r.grad_norm_cv = spread;
  for (WorkerRecord& w : r.workers) {
    w.loss = 2;
    w.grad_norm = 1 + spread * 0.1 * w.loss;
    w.cosine_to_others = cosine;
    w.micro.clear();
  }
  r.cosines.clear();
  r.groups.clear();
}

// Cosines may be high by nature: directions do not show what ranks read.
TEST(Detector, SaysNothingOfGradientsThatAreAlikeAsSuch) {
  Detector detector({});
  Steps steps(4);
  const auto one = [](StepRecord& r) { make_one_gradient(r, 0.99995, 1e-4); };
  EXPECT_TRUE(watch(detector, steps, 100, one).empty());
}

// Two ranks with 2 and 4 micro-batches, each loss divided by its own rank's number of
// micro-batches.
TEST(Detector, LossesOfOtherNumbersOfMicroBatchesAreNotCompared) {
  const auto alarms_of = [](std::uint32_t micro_batches) {
    Detector detector({});
    Steps steps(2);
    return watch(detector, steps, 200, [=](StepRecord& r) {
      r.workers[1].micro_batches = micro_batches;
      r.workers[1].loss /= 2;
    });
  };
  EXPECT_TRUE(alarms_of(4).empty());
  EXPECT_FALSE(alarms_of(2).empty());
}

// Micro-batches of 8, 8 and 4 samples, each mean loss weighted by its size.
TEST(Detector, LossesThatAreWeightedBySizeAreNoSignOfTheSameData) {
  const auto alarms_of = [](std::uint64_t tokens_of_last) {
    Detector detector({});
    Steps steps(4, 1, 3);
    return watch(detector, steps, 300, [=](StepRecord& r) {
      for (WorkerRecord& w : r.workers) {
        for (std::size_t k = 0; k < 3; ++k) {
          w.micro[k].loss = (k == 2 ? 0.2 : 0.4) * (2 + 0.05 * w.micro[k].loss);
          w.micro[k].tokens = k == 2 ? tokens_of_last : 8;
        }
      }
    });
  };
  EXPECT_TRUE(alarms_of(4).empty());
  EXPECT_FALSE(alarms_of(8).empty()) << "as if sizes were equal: what the test must not see";
}

// ---- saving

bool equal(const Alarm& a, const Alarm& b) {
  return a.kind == b.kind && a.statistic == b.statistic && a.high == b.high &&
         a.replicas == b.replicas && a.first_step == b.first_step && a.step == b.step &&
         a.evidence == b.evidence && a.effect == b.effect && a.group == b.group;
}

TEST(Restore, ContinuesAsIfNothingHadHappened) {
  Detector whole({});
  Steps steps(8, 1, 3);
  const auto spoil = [](StepRecord& r) {
    if (r.step >= 150) r.workers[3].loss += 2;
    if (r.step >= 200) r.cosines[4] = 0.9F;
    if (r.step >= 230) r.workers[6].micro[1] = r.workers[6].micro[0];
  };
  watch(whole, steps, 205, spoil);
  Detector restored({});
  ASSERT_TRUE(restored.restore(whole.save()));
  EXPECT_EQ(restored.save(), whole.save());
  std::size_t alarms = 0;
  for (int s = 0; s < 200; ++s) {
    StepRecord record = steps.next();
    spoil(record);
    const Alarms expected = whole.update(record);
    const Alarms got = restored.update(record);
    ASSERT_TRUE(std::ranges::equal(expected, got, equal));
    alarms += got.size();
  }
  EXPECT_GE(alarms, 5);
  EXPECT_EQ(restored.save(), whole.save());
}

TEST(Restore, TakesAStateThatHasSeenNothing) {
  Detector fresh({});
  Detector other({});
  Steps steps(4);
  watch(other, steps, 10);
  EXPECT_TRUE(other.restore(fresh.save()));
  EXPECT_EQ(other.save(), fresh.save());
}

TEST(Restore, RefusesOtherOptions) {
  const std::string state = Detector({}).save();
  Options options;
  options.level = 1e5;
  EXPECT_FALSE(Detector(options).restore(state));
  options = {};
  options.cooldown = 51;
  EXPECT_FALSE(Detector(options).restore(state));
}

TEST(Restore, RefusesWhatIsNoStateAndChangesNothing) {
  Detector detector({});
  Steps steps(4);
  watch(detector, steps, 30);
  const std::string good = detector.save();
  std::mt19937 random(2);
  const auto refuse = [&](const std::string& bytes) { EXPECT_FALSE(detector.restore(bytes)); };
  refuse("");
  for (std::size_t n = 0; n < good.size(); n += 1 + n / 8) refuse(good.substr(0, n));
  refuse(good + '\0');
  for (int k = 0; k < 300; ++k) {
    std::string bad = good;
    bad[random() % bad.size()] ^= static_cast<char>(1 << random() % 8);
    refuse(bad);
    std::string noise(random() % 200, '\0');
    for (char& c : noise) c = static_cast<char>(random());
    refuse(noise);
  }
  EXPECT_EQ(detector.save(), good);
}

// A forged checksum lets any numbers in; nothing must break.
TEST(Restore, SurvivesForgedStates) {
  Detector detector({});
  Steps steps(4);
  watch(detector, steps, 30);
  const std::string good = detector.save();
  std::mt19937 random(3);
  std::uint64_t step = 1000;
  for (int k = 0; k < 400; ++k) {
    std::string bad = good.substr(0, good.size() - 8);
    for (int n = 0; n < 4; ++n) {
      const std::uint64_t word = random() % 3 == 0 ? ~0ULL : random();
      std::memcpy(bad.data() + random() % (bad.size() - 8), &word, 8);
    }
    const std::uint64_t checksum = name_hash(bad);
    bad.append(reinterpret_cast<const char*>(&checksum), 8);
    detector.restore(bad);
    watch(detector, steps, 2, [&](StepRecord& r) { r.step = step++; });
  }
}

// Steps of a new segment: the generator's steps, counted from zero.
Alarms watch_from_zero(Detector& detector, Steps& steps, std::uint64_t count,
                       const std::function<void(StepRecord&)>& spoil) {
  Alarms alarms;
  for (std::uint64_t s = 0; s < count; ++s) {
    StepRecord record = steps.next();
    record.step = s;
    spoil(record);
    append(alarms, detector.update(record));
  }
  return alarms;
}

TEST(Restore, BlamesNobodyForAnEarlierCountOfSteps) {
  Detector before({});
  Steps steps(8);
  const Alarms old = watch(before, steps, 300, [](StepRecord& r) { r.workers[4].loss += 1; });
  ASSERT_FALSE(old.empty());
  Detector detector({});
  ASSERT_TRUE(detector.restore(before.save()));
  const Alarms alarms = watch_from_zero(detector, steps, 31, [](StepRecord& r) {
    if (r.step == 30) r.workers[4].loss = 1e6;
  });
  ASSERT_EQ(alarms.size(), 1) << "a rank that is blamed has no events";
  EXPECT_EQ(alarms[0].kind, Kind::kEvent);
  EXPECT_EQ(alarms[0].step, 30);
}

TEST(Restore, EvidenceOfAnEarlierCountOfStepsBeginsWithTheNewOne) {
  const auto high = [](StepRecord& r) { r.workers[4].loss += 3; };
  Detector before({});
  Steps steps(8);
  watch(before, steps, 200);
  ASSERT_TRUE(watch(before, steps, 5, high).empty());
  Detector detector({});
  ASSERT_TRUE(detector.restore(before.save()));
  const Alarms alarms = watch_from_zero(detector, steps, 20, high);
  ASSERT_FALSE(alarms.empty());
  EXPECT_EQ(alarms[0].replicas, Replicas{4});
  EXPECT_LT(alarms[0].step, 6) << "what was seen before counts";
  EXPECT_EQ(alarms[0].first_step, 0);
  EXPECT_EQ(named(alarms), std::set<Replicas>{{4}});
}

TEST(Restore, LetsNoPairAndNoWorkerCoolDownFromBefore) {
  Options options;
  options.cooldown = 1000;
  Detector before(options);
  Steps steps(8);
  const auto same = [](StepRecord& r) {
    r.cosines[0] = 1;
    r.workers[6].loss += 3;
  };
  ASSERT_EQ(named(watch(before, steps, 300, same)), (std::set<Replicas>{{0, 1}, {6}}));
  Detector detector(options);
  ASSERT_TRUE(detector.restore(before.save()));
  EXPECT_EQ(named(watch_from_zero(detector, steps, 100, same)), (std::set<Replicas>{{0, 1}, {6}}));
}

// ---- what lasts

std::vector<std::uint64_t> steps_that_last(std::uint32_t workers, double shift, std::uint64_t until,
                                           const Replicas& who) {
  Detector detector({});
  Steps steps(workers);
  std::vector<std::uint64_t> out;
  for (std::uint64_t s = 0; s < until + 400; ++s) {
    StepRecord record = steps.next();
    if (s >= 100 && s < until) record.workers[1].loss += shift;
    detector.update(record);
    const Alarms lasting = said(detector).lasting;
    const bool still = std::ranges::any_of(lasting, [&](const Alarm& alarm) {
      return alarm.statistic == Statistic::kLoss && alarm.replicas == who;
    });
    if (still) out.push_back(s);
  }
  return out;
}

TEST(Lasting, IsWhatWasRaisedUntilItEnds) {
  const auto large = steps_that_last(8, 1.5, 400, {1});
  ASSERT_FALSE(large.empty());
  EXPECT_LT(large.front(), 130);
  EXPECT_GE(large.back(), 400);
  EXPECT_LE(large.back(), 405);
  EXPECT_EQ(large.size(), large.back() - large.front() + 1) << "without a gap";
  const auto small = steps_that_last(8, 0.5, 1500, {1});
  ASSERT_FALSE(small.empty());
  EXPECT_GE(small.back(), 1400);
  EXPECT_LE(small.back(), 1540);
  const auto two = steps_that_last(2, 1.5, 400, {0, 1});
  ASSERT_FALSE(two.empty());
  EXPECT_GE(two.back(), 400);
  EXPECT_LE(two.back(), 405);
}

TEST(Lasting, IsNobodyInAHealthyRun) {
  Detector detector({});
  Steps steps(4);
  watch(detector, steps, 300);
  EXPECT_TRUE(said(detector).lasting.empty());
}

TEST(LeastSteps, FallWithTheNumberOfWorkers) {
  EXPECT_EQ(least_steps(0), 0U);
  EXPECT_EQ(least_steps(1), 0U);
  EXPECT_EQ(least_steps(2), 26U);
  EXPECT_EQ(least_steps(4), 15U);
  EXPECT_EQ(least_steps(8), 10U);
  EXPECT_EQ(least_steps(1024), least_steps(1'000'000));
  EXPECT_LE(least_steps(1024), 6U);
}

}  // namespace
}  // namespace presum::detect
