// SPDX-License-Identifier: Apache-2.0
#include "checks/engine/merge.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "checks/engine/testing.h"

namespace presum::checks {
namespace {

Signal signal(Check check, Ranks ranks, std::uint64_t first, std::uint64_t last, Text seen = {}) {
  Signal s = sighting(check, first, {std::move(ranks), false}, 0.5, std::move(seen));
  s.last_step = last;
  return s;
}

std::vector<Finding> findings(std::vector<Signal> signals) {
  for (std::size_t i = 0; i < signals.size(); ++i) signals[i].id = i + 1;
  std::vector<Finding> out;
  for (const auto& members : merge(signals)) out.push_back(finding_of(signals, members));
  return out;
}

TEST(Merge, WhatNumbersAloneShowAsksForAComparisonWithAnotherRun) {
  const auto asks = [](std::vector<Signal> signals) {
    const auto found = findings(std::move(signals));
    EXPECT_EQ(found.size(), 1U);
    return found[0].remedy.find("presum compare RUN HEALTHY_RUN") != std::string::npos;
  };
  EXPECT_TRUE(asks({signal(&kRankOutlier, {3}, 30, 60)}));
  EXPECT_TRUE(asks({signal(&kTooConsistent, {0, 1, 2, 3}, 30, 60)}));
  EXPECT_TRUE(asks({signal(&kPairTooSimilar, {1, 3}, 30, 60), signal(&kRankOutlier, {3}, 30, 60)}));
  EXPECT_FALSE(asks({signal(&kModeMismatch, {3}, 30, 60), signal(&kRankOutlier, {3}, 30, 60)}));
  EXPECT_FALSE(asks({signal(&kSlowRank, {3}, 30, 60)}));
  Signal meant = signal(&kRankOutlier, {3}, 30, 60);
  meant.severity = Severity::kInfo;
  EXPECT_FALSE(asks({meant})) << "it may be as it is meant";
}

TEST(Merge, ACauseAbsorbsItsEffects) {
  const auto found =
      findings({signal(&kRankOutlier, {3}, 30, 60), signal(&kParameterDesync, {3}, 12, 80),
                signal(&kOptimizerMismatch, {3}, 10, 80)});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].check, "optimizer-mismatch");
  EXPECT_EQ(found[0].also, (Ids{"parameter-desync", "rank-outlier"}));
  EXPECT_EQ(found[0].first_step, 10U);
  EXPECT_EQ(found[0].last_step, 80U);
  EXPECT_EQ(found[0].title, "Rank 3");
}

TEST(Merge, InformationThatNamesTheCauseIsTheHeadOfWhatIsGraver) {
  Signal loss = signal(&kLossMismatch, {3}, 3, 80);
  loss.severity = Severity::kInfo;
  const auto found = findings({signal(&kRankOutlier, {3}, 30, 60), loss});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].check, "loss-mismatch");
  EXPECT_EQ(found[0].severity, Severity::kWarning);
  EXPECT_EQ(found[0].also, Ids{"rank-outlier"});
}

TEST(Merge, OfTwoRanksACauseOfAllExplainsAStatisticOfBoth) {
  const auto checks = [](Ranks ranks) {
    Signal loss = signal(&kLossMismatch, {0, 1}, 3, 80);
    loss.severity = Severity::kInfo;
    loss.everyone = true;
    const auto found = findings({signal(&kRankOutlier, std::move(ranks), 30, 60), loss});
    return std::pair(found.size(), found.front().check);
  };
  EXPECT_EQ(checks({0, 1}), std::pair(std::size_t{1}, std::string("loss-mismatch")));
  EXPECT_EQ(checks({1}).first, 2U);
}

TEST(Merge, TheHeadIsTheFirstInTheOrderEvenWhereTheOtherExplainsIt) {
  const auto found =
      findings({signal(&kSamplerMismatch, {0, 1}, 0, 9), signal(&kDuplicateData, {0, 1}, 0, 9),
                signal(&kOverlappingData, {0, 1}, 0, 9)});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].check, "duplicate-data");
  EXPECT_EQ(found[0].also, (Ids{"sampler-mismatch", "overlapping-data"}));
}

TEST(Merge, ZerosThatSayLittleOrAreOfAllHideNoWorker) {
  const auto count = [](Severity severity, bool everyone) {
    Signal zero = signal(&kZeroGradient, {0, 1, 2, 3}, 20, 80);
    zero.severity = severity;
    zero.everyone = everyone;
    return findings({zero, signal(&kRankOutlier, {2}, 20, 60)}).size();
  };
  EXPECT_EQ(count(Severity::kInfo, false), 2U);
  EXPECT_EQ(count(Severity::kWarning, true), 2U);
  EXPECT_EQ(count(Severity::kCritical, true), 2U);
  EXPECT_EQ(count(Severity::kCritical, false), 1U) << "its effect";
}

TEST(Merge, WhatIsLesserOfTheSameCheckAddsNoEvidence) {
  Signal grave = signal(&kZeroGradient, {0, 1, 2}, 20, 80);
  Signal lesser = signal(&kZeroGradient, {1}, 10, 90);
  lesser.severity = Severity::kInfo;
  const auto found = findings({grave, lesser});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].evidence.size(), 1U);
  EXPECT_EQ(found[0].first_step, 20U);
  EXPECT_EQ(found[0].last_step, 90U);
}

TEST(Merge, WhatDoesNotExplainTheOtherStaysItsOwn) {
  const auto count = [](Check one, Ranks ranks, Check other, Ranks others) {
    return findings({signal(one, std::move(ranks), 0, 9), signal(other, std::move(others), 0, 9)})
        .size();
  };
  EXPECT_EQ(count(&kNonfiniteGradient, {3}, &kParameterDesync, {5}), 2U);
  EXPECT_EQ(count(&kRankOutlier, {1}, &kRankOutlier, {2}), 2U);
  EXPECT_EQ(count(&kTokenImbalance, {1}, &kDuplicateData, {1}), 2U);
  EXPECT_EQ(count(&kNoReduction, {0, 1}, &kMissingRank, {0}), 1U);
}

TEST(Merge, DoesNotGlueTwoCausesByAnEffectOfBoth) {
  const auto found =
      findings({signal(&kOptimizerMismatch, {2}, 0, 90), signal(&kModeMismatch, {5}, 0, 90),
                signal(&kRankOutlier, {2, 5}, 10, 90)});
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].also, Ids{"rank-outlier"});
  EXPECT_TRUE(found[1].also.empty());
}

TEST(Merge, AnEffectMayBeSeen50StepsBeforeAndAfterItsCause) {
  const auto count = [](std::uint64_t effect_first) {
    return findings({signal(&kParameterDesync, {3}, 100, 120),
                     signal(&kRankOutlier, {3}, effect_first, 500)})
        .size();
  };
  EXPECT_EQ(count(49), 2U);
  EXPECT_EQ(count(50), 1U);
  EXPECT_EQ(count(170), 1U);
  EXPECT_EQ(count(171), 2U);
}

TEST(Merge, TakesTheGravestSeverityAndKeepsWhatWasSeenOfEach) {
  const auto found = findings({signal(&kBufferDesync, {3}, 0, 9, {" of bn"}),
                               signal(&kParameterDesync, {3, 4}, 5, 9, {" of fc"})});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].check, "buffer-desync");
  EXPECT_EQ(found[0].severity, Severity::kCritical);
  ASSERT_EQ(found[0].evidence.size(), 2U);
  EXPECT_EQ(found[0].evidence[0].values, R"({"text":" of bn"})");
  const Finding::Evidence& effect = found[0].evidence[1];
  EXPECT_EQ(effect.check, "parameter-desync");
  EXPECT_EQ(effect.ranks, (Ranks{3, 4}));
  EXPECT_EQ(effect.sentence, "Ranks 3-4 of fc");
  EXPECT_EQ(effect.values, R"({"text":" of fc"})");
  EXPECT_EQ(found[0].ranks, Ranks{3}) << "the head's";
}

TEST(Merge, PairsOfOneCauseAddUp) {
  const auto found =
      findings({signal(&kPairTooSimilar, {0, 1}, 0, 9), signal(&kPairTooSimilar, {1, 2}, 0, 9)});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].ranks, (Ranks{0, 1, 2}));
}

TEST(Merge, ThoseLeftAlikeBesideOnesSetApartAreTheirEffect) {
  const auto count = [](Check cause, Ranks apart, Ranks pair, std::uint32_t workers) {
    Signal alike = signal(&kPairTooSimilar, std::move(pair), 30, 60);
    alike.workers = workers;
    return findings({signal(cause, std::move(apart), 10, 80), alike}).size();
  };
  EXPECT_EQ(count(&kOptimizerMismatch, {2}, {0, 1}, 3), 1U);
  EXPECT_EQ(count(&kParameterDesync, {3}, {0, 1}, 4), 1U);
  EXPECT_EQ(count(&kParameterDesync, {3}, {0, 1}, 64), 2U)
      << "one of many pairs has its own reason";
  EXPECT_EQ(count(&kParameterDesync, {3}, {0, 1}, 0), 2U) << "nobody knows how many there are";
  EXPECT_EQ(count(&kRankOutlier, {1}, {0, 2}, 3), 1U);
  EXPECT_EQ(count(&kTokenImbalance, {3}, {0, 1}, 4), 1U);
  EXPECT_EQ(count(&kTokenImbalance, {0, 1, 2}, {0, 1}, 3), 2U) << "of all";
  EXPECT_EQ(count(&kSharedRng, {3}, {0, 1}, 4), 2U) << "it sets nobody's gradient apart";
  EXPECT_EQ(count(&kOptimizerMismatch, {0, 1}, {0, 1}, 2), 1U) << "or of the same ranks";
}

TEST(Merge, ThoseThatDuplicatesOutvoteAreTheirEffect) {
  const auto found = [](Ranks outliers, bool turned_away) {
    Signal outlier = signal(&kRankOutlier, std::move(outliers), 30, 60);
    outlier.turned_away = turned_away;
    return findings({signal(&kDuplicateData, {0, 1}, 10, 80), outlier});
  };
  const auto merged = found({2, 3}, true);
  ASSERT_EQ(merged.size(), 1U);
  EXPECT_EQ(merged[0].check, "duplicate-data");
  EXPECT_EQ(merged[0].ranks, (Ranks{0, 1}));
  EXPECT_EQ(merged[0].also, Ids{"rank-outlier"});
  EXPECT_EQ(found({2}, false).size(), 2U) << "nearer to the mean, or another statistic";
}

TEST(Merge, ADesignExplainsGradientsThatAreAlikeAndNothingElse) {
  const auto count = [](Check effect) {
    Signal design = signal(&kSamplerMismatch, {0, 1, 2, 3}, 0, 90);
    design.severity = Severity::kInfo;
    return findings({design, signal(effect, {2, 3}, 20, 60)}).size();
  };
  EXPECT_EQ(count(&kPairTooSimilar), 1U);
  EXPECT_EQ(count(&kOverlappingData), 2U);
  EXPECT_EQ(count(&kRankOutlier), 2U);
}

TEST(Merge, AHarmlessEnvironmentExplainsNothing) {
  Signal environment = signal(&kEnvironmentMismatch, {3}, 0, 90);
  environment.severity = Severity::kInfo;
  EXPECT_EQ(findings({environment, signal(&kParameterDesync, {3}, 0, 90)}).size(), 2U);
  environment.severity = Severity::kWarning;
  EXPECT_EQ(findings({environment, signal(&kParameterDesync, {3}, 0, 90)}).size(), 1U);
}

TEST(Merge, ATitleOfOneStatisticNamesNoRanksOfAnother) {
  Signal loss = signal(&kRankOutlier, {2}, 20, 60);
  loss.key = 1;
  Signal micro = signal(&kRankOutlier, {0, 1, 2, 3}, 10, 60);
  micro.key = 2;
  micro.everyone = true;
  const auto found = findings({micro, loss});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].title, "Rank 2") << "those that name a minority come first";
  EXPECT_EQ(found[0].ranks, Ranks{2});
  EXPECT_EQ(found[0].evidence.back().ranks, (Ranks{0, 1, 2, 3}));
  EXPECT_TRUE(found[0].also.empty());
}

TEST(Merge, WhatTheProgramAllowsItAllowsWithItsEffects) {
  Signal duplicates = signal(&kDuplicateData, {0, 1}, 10, 60);
  duplicates.severity = Severity::kInfo;
  duplicates.allowed = true;
  const Signal cause = signal(&kSamplerMismatch, {0, 1}, 10, 60);
  const auto found = findings({duplicates, cause});
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].check, "duplicate-data");
  EXPECT_EQ(found[0].severity, Severity::kInfo);
  duplicates.allowed = false;
  EXPECT_EQ(findings({duplicates, cause})[0].severity, Severity::kWarning);
}

TEST(Merge, TheTitleIsOfTheStatisticItselfThoughWhatIsDerivedFromItCameFirst) {
  Signal residual = signal(&kRankOutlier, {2}, 10, 60, {"residual"});
  residual.derived = true;
  Signal norm = signal(&kRankOutlier, {2}, 20, 60, {"norm"});
  norm.key = 1;
  EXPECT_EQ(findings({residual})[0].title, "Rank 2residual");
  const Finding both = findings({residual, norm})[0];
  EXPECT_EQ(both.title, "Rank 2norm");
  EXPECT_EQ(both.first_step, 10U);
}

TEST(Merge, NamesNoRanksButThoseOfWhatTheTitleSays) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 2000; ++round) {
    std::vector<Signal> all;
    for (std::uint64_t i = 0; i < 2 + random() % 8; ++i) {
      Ranks ranks;
      for (std::uint32_t rank = 0; rank < 6; ++rank) {
        if (random() % 3 == 0) ranks.push_back(rank);
      }
      if (ranks.empty()) ranks = {0};
      const std::uint64_t first = random() % 100;
      all.push_back(
          signal(catalog()[random() % kChecks], ranks, first, first + 40, {"", random() % 3}));
      all.back().everyone = random() % 4 == 0;
      all.back().workers = 6;
    }
    for (std::size_t i = 0; i < all.size(); ++i) all[i].id = i + 1;
    std::vector<int> times(all.size());  // the number of findings that contain each signal
    for (const auto& members : merge(all)) {
      for (const std::size_t m : members) ++times[m];
      const Signal& head = all[members.front()];
      Ranks said;
      for (const std::size_t m : members) {
        if (all[m].check == head.check && all[m].key == head.key) said = unite(said, all[m].ranks);
      }
      const Finding found = finding_of(all, members);
      EXPECT_TRUE(without(found.ranks, said).empty()) << found.title;
      EXPECT_TRUE(without(head.ranks, found.ranks).empty());
    }
    EXPECT_EQ(times, std::vector<int>(all.size(), 1));
  }
}

TEST(Merge, AStatisticIsSurerByItsSizeItsLastingAndWhatElseShowsIt) {
  const auto confidence = [](double effect, std::uint64_t lasted, bool others) {
    Signal loss = signal(&kRankOutlier, {2}, 20, 60);
    loss.effect = effect;
    loss.lasted = lasted;
    std::vector<Signal> all{loss};
    if (others) {
      all.push_back(loss);
      all.back().key = 7;
    }
    return findings(all).at(0).confidence;
  };
  EXPECT_LT(confidence(0.38, 0, false), 0.56);
  EXPECT_LT(confidence(0.38, 0, false), confidence(-24.9, 0, false));
  EXPECT_LT(confidence(2, 0, false), confidence(2, 100, false));
  EXPECT_LT(confidence(2, 100, false), confidence(2, 100, true));
  EXPECT_LE(confidence(1e9, 1'000'000, true), 0.95);
}

TEST(Merge, BoundsTheEvidence) {
  std::vector<Signal> many;
  for (std::uint64_t i = 0; i < 100; ++i) {
    Signal s = signal(&kRankOutlier, {3}, i, i);
    s.key = i;
    many.push_back(s);
  }
  const auto found = findings(many);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].evidence.size(), 16U);
}

}  // namespace
}  // namespace presum::checks
