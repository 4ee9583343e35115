// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "checks/engine/testing.h"

namespace presum::checks {
namespace {

using State = CheckRecord::State;

// `odd` of the ranks tie nothing.
Watched tied(std::uint32_t workers, std::uint32_t odd) {
  Watched w({.workers = workers});
  const auto ties = [&](std::uint32_t rank) { return rank >= workers - odd ? "none" : "a = b"; };
  w.hello([&](std::uint32_t rank) {
    return WorkerFacts{"host", {{"tied_parameters", ties(rank)}}, {}};
  });
  w.play(0, 60, [&](StepRecord& r) {
    if (r.step % 25 != 0) return;
    for (WorkerRecord& x : r.workers) set(x, Kind::kTiedParameters, ties(x.rank)[0]);
  });
  return w;
}

TEST(SharedParameters, ARankThatTiesOthersIsNamedAtOnce) {
  expect(tied(4, 1), "shared-parameters",
         {.ranks = {3},
          .count = 1,
          .severity = Severity::kCritical,
          .first_step = 0,
          .title = "Rank 3 tied different parameters than the others (0-2: a = b; 3: none)"});
  expect(tied(2, 1), "shared-parameters",
         {.count = 2, .title = "The ranks tie different parameters (0: a = b; 1: none)"});
}

TEST(SharedParameters, RanksThatTieTheSamePass) {
  const Watched w = tied(4, 0);
  expect_quiet(w);
  EXPECT_EQ(w.check("shared-parameters").state, State::kPassed);
  EXPECT_EQ(played(9).check("shared-parameters").state, State::kNotPossible);
}

// Of four ranks, from `first` on.
Watched in_two_optimizers(std::uint32_t first, std::uint64_t steps) {
  Watched w({.workers = 4});
  w.hello([&](std::uint32_t rank) {
    WorkerFacts facts{"host", {}, {}};
    if (rank < first) return facts;
    facts.facts = {{"in_two_optimizers", "head.weight"}, {"two_optimizers", "AdamW and SGD"}};
    return facts;
  });
  w.play(0, steps);
  return w;
}

TEST(SharedParameters, TwoOptimizersOnEveryRankAreInformationWithTheirNames) {
  expect(in_two_optimizers(0, 5), "shared-parameters",
         {.count = 4,
          .severity = Severity::kInfo,
          .title = "All 4 ranks updated head.weight with two optimizers (AdamW and SGD)",
          .remedy = "one optimizer"});
}

TEST(SharedParameters, RanksThatFollowChangeNothingOfTheFinding) {
  Watched w = in_two_optimizers(3, 40);
  w.hello([](std::uint32_t) {
    return WorkerFacts{
        "host", {{"in_two_optimizers", "head.weight"}, {"two_optimizers", "AdamW and SGD"}}, {}};
  });
  w.play(41, 80);
  expect(w, "shared-parameters",
         {.ranks = {3}, .count = 1, .severity = Severity::kCritical, .remedy = "same optimizers"});
}

TEST(SharedParameters, TwoOptimizersOnSomeRanksAreAFinding) {
  expect_quiet(in_two_optimizers(3, 20));
  expect(in_two_optimizers(3, 40), "shared-parameters",
         {.ranks = {3},
          .count = 1,
          .severity = Severity::kCritical,
          .first_step = 0,
          .title = "Rank 3 updated head.weight with two optimizers (AdamW and SGD), and the others "
                   "did not",
          .remedy = "same optimizers"});
}

}  // namespace
}  // namespace presum::checks
