// SPDX-License-Identifier: Apache-2.0
#include "checks/engine/wording.h"

#include <gtest/gtest.h>

namespace presum::checks {
namespace {

Finding outlier() {
  Finding f;
  f.check = "rank-outlier";
  f.severity = Severity::kWarning;
  f.ranks = {2};
  f.first_step = 101;
  f.last_step = 140;
  f.certain_step = 114;
  f.title = "Rank 2 had a gradient norm persistently higher than the other ranks'";
  f.evidence = {{f.check, f.ranks, f.title, R"({"statistic":"norm","ratio":3.9721})"}};
  return f;
}

// For a modified outlier.
template <class Change>
Wording changed(const Change& change) {
  Finding f = outlier();
  change(f);
  return wording(f);
}

TEST(Wording, SaysSinceWhenAndTheValuesByName) {
  const Wording said = wording(outlier());
  EXPECT_EQ(said.sentence,
            "Rank 2 had a gradient norm persistently higher than the other ranks', since "
            "about step 101, last seen at 140");
  EXPECT_EQ(said.evidence, "began at about step 101, certain at 114");
  EXPECT_EQ(changed([](Finding& f) { f.check = "clip-norm"; }).evidence,
            "statistic: norm; ratio: 3.97; began at step 101, certain at 114");
  EXPECT_EQ(said.more, "presum explain rank-outlier; presum blame RUN --step 114 --rank 2");
  EXPECT_FALSE(said.consequence.empty());
}

TEST(Wording, BetweenTheLastEqualHashAndTheFirstOtherOne) {
  const Wording apart = changed([](Finding& f) { f.equal_until = 76; });
  EXPECT_TRUE(apart.sentence.ends_with("began between steps 77 and 101, last seen at 140"));
  const Wording next = changed([](Finding& f) { f.equal_until = 100; });
  EXPECT_TRUE(next.sentence.ends_with("since about step 101, last seen at 140"));
}

TEST(Wording, OfOneStep) {
  const Wording said = changed([](Finding& f) { f.first_step = f.last_step = 114; });
  EXPECT_TRUE(said.sentence.ends_with(", at step 114")) << said.sentence;
  EXPECT_EQ(said.evidence.find("began"), std::string::npos);
}

TEST(Wording, OfSeveralModels) {
  const Wording said = changed([](Finding& f) { f.elsewhere = {{1, 1, 0}, {1, 2, 0}}; });
  EXPECT_TRUE(said.sentence.ends_with("last seen at 140, in 3 models"));
}

TEST(Wording, ShowsListsAndObjects) {
  const Wording said = changed([](Finding& f) {
    f.check = "clip-norm";
    f.certain_step = {};
    f.evidence[0].values =
        R"({"ranks_alike":[0,1],"settings":{"lr":"2: 0.1"},"parts":[{"layer":"fc"}]})";
  });
  EXPECT_EQ(said.evidence, "ranks alike: 0, 1; settings: lr 2: 0.1; parts: layer fc");
}

TEST(Wording, OfEvidenceThatIsNone) {
  for (const char* damaged : {"", "[1]", "{", "null"}) {
    const Wording said = changed([&](Finding& f) { f.evidence[0].values = damaged; });
    EXPECT_EQ(said.evidence, "began at about step 101, certain at 114") << damaged;
  }
  EXPECT_FALSE(changed([](Finding& f) { f.evidence.clear(); }).sentence.empty());
}

TEST(Wording, OfInformationThereIsNoConsequence) {
  EXPECT_EQ(changed([](Finding& f) { f.severity = Severity::kInfo; }).consequence, "");
}

TEST(Wording, OfACheckThatThisVersionDoesNotKnow) {
  const Wording said = changed([](Finding& f) { f.check = "of-another-version"; });
  EXPECT_EQ(said.more, "");
  EXPECT_EQ(said.consequence, "");
}

}  // namespace
}  // namespace presum::checks
