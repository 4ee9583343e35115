// SPDX-License-Identifier: Apache-2.0
#include "diagnose/checks.h"

#include <gtest/gtest.h>

namespace presum::diagnose {
namespace {

using enum Check;

TEST(Catalogue, TellsWhatEveryCheckLooksAtAndWhatToDo) {
  for (const CheckInfo& c : catalogue()) {
    EXPECT_FALSE(c.looks_at.empty()) << c.id;
    EXPECT_TRUE(c.remedy.ends_with('.')) << c.id;
    EXPECT_LT(c.remedy.size(), 320U) << c.id;
    EXPECT_TRUE(c.consequence.ends_with('.')) << c.id;
    EXPECT_TRUE(c.blind.ends_with('.')) << c.id;
    EXPECT_FALSE(c.code.empty()) << c.id;
    EXPECT_EQ(find_check(c.id), &c);
  }
  EXPECT_EQ(find_check("no-such-check"), nullptr);
}

TEST(Explains, ItselfAndWhatTheTableSays) {
  for (std::size_t c = 0; c < kChecks; ++c) {
    EXPECT_TRUE(explains(static_cast<Check>(c), static_cast<Check>(c)));
  }
  EXPECT_TRUE(explains(kNoReduction, kParameterDesync));
  EXPECT_FALSE(explains(kParameterDesync, kNoReduction));
}

TEST(Catalogue, HasTheAgreedSeverities) {
  for (const Check c : {kNonfiniteGradient, kNonfiniteLoss, kNoReduction, kReducedGradientMismatch,
                        kParameterDesync, kOptimizerMismatch, kDuplicateData, kReductionScale,
                        kZeroGradient, kFrozenGradient, kReductionError}) {
    EXPECT_EQ(info(c).severity, Severity::kCritical) << info(c).id;
  }
  for (const Check c :
       {kOverlappingData, kSamplerMismatch, kEpochNotSet, kManifestMismatch, kBufferDesync,
        kModeMismatch, kWorkerOutlier, kPairTooSimilar, kTooConsistent, kMissingWorker,
        kTokenImbalance, kEnvironmentMismatch, kReductionDtype, kReductionNondeterministic}) {
    EXPECT_EQ(info(c).severity, Severity::kWarning) << info(c).id;
  }
  for (const Check c : {kLossEvent, kSharedRng}) EXPECT_EQ(info(c).severity, Severity::kInfo);
}

}  // namespace
}  // namespace presum::diagnose
