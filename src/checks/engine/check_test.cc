// SPDX-License-Identifier: Apache-2.0
#include "checks/engine/check.h"

#include <gtest/gtest.h>

#include <set>

namespace presum::checks {
namespace {

TEST(Catalog, TellsWhatEveryCheckComparesAndWhatToDo) {
  std::set<int> precedences;
  for (const Check c : catalog()) {
    EXPECT_FALSE(c->compares.empty()) << c->id;
    EXPECT_FALSE(c->fires.empty()) << c->id;
    EXPECT_TRUE(c->fix.ends_with('.')) << c->id;
    EXPECT_LT(c->fix.size(), 320U) << c->id;
    EXPECT_TRUE(c->consequence.ends_with('.')) << c->id;
    EXPECT_TRUE(c->cannot_see.ends_with('.')) << c->id;
    EXPECT_FALSE(c->mistake.empty()) << c->id;
    EXPECT_EQ(find_check(c->id), c);
    EXPECT_TRUE(explains(c, c)) << c->id;
    EXPECT_TRUE(precedences.insert(c->precedence).second) << c->id;
  }
  EXPECT_EQ(find_check("no-such-check"), nullptr);
}

TEST(Catalog, ChecksOfOneRuleAgreeOnWhetherTheyCompareRanks) {
  for (const Check a : catalog()) {
    for (const Check b : catalog()) {
      EXPECT_TRUE(a->make != b->make || a->compares_ranks == b->compares_ranks)
          << a->id << ", " << b->id;
    }
  }
}

TEST(Explains, WhatTheDeclarationSays) {
  EXPECT_TRUE(explains(&kNoReduction, &kParameterDesync));
  EXPECT_FALSE(explains(&kParameterDesync, &kNoReduction));
}

TEST(Catalog, HasTheAgreedSeverities) {
  for (const Check c :
       {&kNonfiniteGradient, &kNonfiniteLoss, &kNoReduction, &kReducedGradientMismatch,
        &kParameterDesync, &kOptimizerMismatch, &kDuplicateData, &kReductionScale, &kZeroGradient,
        &kFrozenGradient, &kReductionError}) {
    EXPECT_EQ(c->severity, Severity::kCritical) << c->id;
  }
  for (const Check c :
       {&kOverlappingData, &kSamplerMismatch, &kEpochNotSet, &kDatasetMismatch, &kBufferDesync,
        &kModeMismatch, &kRankOutlier, &kPairTooSimilar, &kTooConsistent, &kMissingRank,
        &kTokenImbalance, &kEnvironmentMismatch, &kReductionDtype, &kReductionNondeterministic}) {
    EXPECT_EQ(c->severity, Severity::kWarning) << c->id;
  }
  for (const Check c : {&kLossEvent, &kSharedRng}) EXPECT_EQ(c->severity, Severity::kInfo);
}

}  // namespace
}  // namespace presum::checks
