// SPDX-License-Identifier: Apache-2.0
#include "checks/engine/wording.h"

#include <gtest/gtest.h>

#include <limits>

#include "checks/engine/diagnoser.h"

namespace presum::checks {
namespace {

Finding outlier() {
  Finding f;
  f.check = "rank-outlier";
  f.severity = Severity::kWarning;
  f.ranks = {2};
  f.first_step = 101;
  f.last_step = 140;
  f.title = "Rank 2 had a gradient norm persistently higher than the other workers'";
  f.evidence = {{"statistic", std::string("norm")},
                {"alarm_step", std::int64_t{114}},
                {"log10_evidence", 6.2},
                {"effect_sd", 7.0},
                {"ratio", 3.97}};
  return f;
}

// Of an outlier that is changed.
template <class Change>
Wording changed(const Change& change) {
  Finding f = outlier();
  change(f);
  return wording(f);
}

TEST(Wording, SaysSinceWhenWithHowMuchAndWhatItMayBe) {
  const Wording said = wording(outlier());
  EXPECT_EQ(said.sentence,
            "Rank 2 had a gradient norm persistently higher than the other workers', since step "
            "101, last seen at 140");
  EXPECT_EQ(said.evidence,
            "gradient norm 3.97 times the others' (7 spreads above); began at step 101, certain at "
            "114");
  EXPECT_EQ(said.suspects, "a loss that is not divided by 4, as it is on the others");
  EXPECT_EQ(said.more, "presum explain rank-outlier; presum blame RUN --step 101 --rank 2");
  EXPECT_FALSE(said.consequence.empty());
}

// Statistics of one rank, each with how many spreads it is off.
std::string suspects_of(const std::vector<std::pair<std::string, double>>& statistics,
                        double ratio = 2) {
  Finding f = outlier();
  f.evidence.clear();
  for (const auto& [name, effect] : statistics) {
    f.evidence.insert(f.evidence.end(), {{"statistic", name}, {"effect_sd", effect}});
    if (name == "norm") f.evidence.emplace_back("ratio", ratio);
  }
  return wording(f).suspects;
}

TEST(Wording, SuspectsFitAllThatIsKnown) {
  EXPECT_NE(suspects_of({{"norm", 9}}).find("divided by 2"), std::string::npos);
  EXPECT_EQ(suspects_of({{"direction", -9}, {"norm", 9}}).find("divided"), std::string::npos)
      << "a scale does not turn a gradient";
  EXPECT_NE(suspects_of({{"direction", -9}}).find("sign"), std::string::npos);
  const auto labels = suspects_of({{"direction", -9}, {"loss", 5}});
  EXPECT_NE(labels.find("labels that do not belong"), std::string::npos);
  EXPECT_EQ(labels.find("sign"), std::string::npos);
  EXPECT_NE(suspects_of({{"direction", 9}}).find("larger batch"), std::string::npos);
  EXPECT_NE(suspects_of({{"peak", 9}}).find("damaged"), std::string::npos);
  EXPECT_EQ(suspects_of({{"peak", -9}}).find("damaged"), std::string::npos);
}

TEST(Wording, BetweenTheLastEqualHashAndTheFirstOtherOne) {
  Finding f = outlier();
  f.check = "parameter-desync";
  f.title = "Rank 0 held other parameters than the others";
  f.evidence = {{"equal_until_step", std::int64_t{76}}};
  EXPECT_TRUE(wording(f).sentence.ends_with("since a step from 77 to 101, last seen at 140"))
      << wording(f).sentence;
  f.evidence = {{"equal_until_step", std::int64_t{100}}};
  EXPECT_TRUE(wording(f).sentence.ends_with("since step 101, last seen at 140"));
}

TEST(Wording, OfOneStep) {
  const Wording said = changed([](Finding& f) { f.first_step = f.last_step = 114; });
  EXPECT_TRUE(said.sentence.ends_with(", at step 114")) << said.sentence;
  EXPECT_EQ(said.evidence.find("began"), std::string::npos);
}

TEST(Wording, OfTwoWorkersNobodyKnowsWhichIsAtFault) {
  Finding f = outlier();
  f.title = "Ranks 0-1 persistently differed in their gradient norm";
  f.ranks = {0, 1};
  f.evidence.insert(f.evidence.end(),
                    {{"of_rank", std::int64_t{0}}, {"beside_rank", std::int64_t{1}}});
  EXPECT_NE(wording(f).evidence.find("gradient norm of rank 0"), std::string::npos);
  EXPECT_NE(wording(f).evidence.find("rank 1's"), std::string::npos) << wording(f).evidence;
  EXPECT_EQ(wording(f).evidence.find("the others'"), std::string::npos);
  EXPECT_EQ(wording(f).suspects,
            "on one of them, a loss that is divided by 4 once more or not divided; on one of them, "
            "a gradient that is clipped before the reduction");
}

TEST(Wording, OnlyAnAlarmIsCertainLaterThanItsBeginning) {
  const Wording said = changed([](Finding& f) { f.check = "optimizer-mismatch"; });
  EXPECT_EQ(said.evidence.find("certain"), std::string::npos);
}

TEST(Wording, OfSeveralModels) {
  const Wording said = changed([](Finding& f) { f.elsewhere = {{1, 1, 0}, {1, 2, 0}}; });
  EXPECT_TRUE(said.sentence.ends_with("last seen at 140, in 3 models"));
}

TEST(Wording, SeveralStatisticsAreToldApartWithTheRanksOfOthers) {
  Finding f = outlier();
  f.evidence[4].second = 0.06;
  f.evidence[3].second = -8.0;
  f.evidence.emplace_back("rank_outlier_statistic", std::string("loss"));
  f.evidence.emplace_back("rank_outlier_effect_sd", 2.5);
  f.evidence.emplace_back("rank_outlier_ranks", std::string("0,1,3"));
  const Wording said = wording(f);
  EXPECT_EQ(said.evidence,
            "gradient norm 0.06 times the others' (8 spreads below); loss 2.5 spreads above the "
            "others' (ranks 0,1,3); began at step 101, certain at 114");
  EXPECT_NE(said.suspects.find("clipped before the reduction"), std::string::npos);
  EXPECT_EQ(said.suspects.find("labels"), std::string::npos) << "what others show is no suspect";
}

TEST(Wording, LeavesOutTheNumbersOfItsEffectsButTheirStatistics) {
  Finding f = outlier();
  f.also = {"parameter-desync", "pair-too-similar"};
  f.evidence = {{"betas", std::string("2: [0.9, 0.95]")},
                {"parameter_desync_groups", std::string("fc")},
                {"pair_too_similar_statistic", std::string("direction")},
                {"pair_too_similar_effect_sd", 1234.5}};
  EXPECT_EQ(wording(f).evidence,
            "cosine with the other gradients over 100 spreads above the others'; betas: 2: [0.9, "
            "0.95]");
}

TEST(Wording, LeavesOutWhatSaysNothing) {
  Finding f;
  f.check = "duplicate-data";
  f.severity = Severity::kCritical;
  f.title = "Ranks 0-1 read the same samples";
  f.evidence = {{"groups_of_ranks", std::string("0,1")},
                {"distinct_gradients", std::int64_t{7}},
                {"how", std::string("samples")},
                {"rows_equal_share", 1.0},
                {"effect_sd", 0.0},
                {"something_new", std::int64_t{5}},
                {"unknown", std::numeric_limits<double>::quiet_NaN()}};
  EXPECT_EQ(wording(f).evidence,
            "ranks that read alike: 0,1; different gradients in the step: 7; something new: 5");
}

TEST(Wording, OfInformationThereIsNoConsequenceAndNoSuspect) {
  const Wording said = changed([](Finding& f) { f.severity = Severity::kInfo; });
  EXPECT_EQ(said.consequence, "");
  EXPECT_EQ(said.suspects, "");
  EXPECT_NE(said.evidence, "");
}

TEST(Wording, OfACheckThatThisVersionDoesNotKnow) {
  const Wording said = changed([](Finding& f) { f.check = "of-another-version"; });
  EXPECT_EQ(said.more, "");
  EXPECT_EQ(said.consequence, "");
}

}  // namespace
}  // namespace presum::checks
