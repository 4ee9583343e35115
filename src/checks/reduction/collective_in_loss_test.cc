// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "checks/engine/testing.h"

namespace presum::checks {
namespace {

using State = CheckRecord::State;

// `ranks` reduce their loss in place.
Watched reduced(const std::string& how, std::uint32_t ranks = 8) {
  Watched w;
  w.hello([&](std::uint32_t rank) {
    WorkerFacts facts{"host", {{"fingerprints", "mode"}}, {}};
    if (rank < ranks) {
      facts.facts.emplace_back("loss_reduced_at", "all_reduce at train.py:7");
      facts.facts.emplace_back("loss_reduced_how", how);
    }
    return facts;
  });
  w.play(0, 5);
  return w;
}

TEST(CollectiveInLoss, WhatChangesTheGradientIsAWarning) {
  const Watched divided = reduced("divided");
  expect(divided, "collective-in-loss", {.count = 8, .severity = Severity::kWarning});
  EXPECT_EQ(divided.first().title,
            "All 8 ranks summed the loss over the ranks in place (all_reduce at train.py:7) and "
            "divided it by their number: autograd sees the division only");
  expect(reduced("function", 1), "collective-in-loss", {.ranks = {0}, .count = 1});
}

TEST(CollectiveInLoss, WhatOnlyChangesTheValueIsInformation) {
  const Watched w = reduced("unknown");
  expect(w, "collective-in-loss", {.count = 8, .severity = Severity::kInfo});
  EXPECT_EQ(text_of(w.first(), "effect"), "unknown");
}

TEST(CollectiveInLoss, PassesOnlyWhereALossWasFollowed) {
  EXPECT_EQ(played(9).check("collective-in-loss").state, State::kNotTriggered);
  Watched w;
  w.hello([](std::uint32_t) {
    return WorkerFacts{"host", {{"fingerprints", "mode"}, {"loss.functions", "MseLoss"}}, {}};
  });
  w.play(0, 9);
  EXPECT_EQ(w.check("collective-in-loss").state, State::kPassed);
}

}  // namespace
}  // namespace presum::checks
