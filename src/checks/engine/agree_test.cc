// SPDX-License-Identifier: Apache-2.0
#include "checks/engine/agree.h"

#include <gtest/gtest.h>

#include <vector>

#include "checks/engine/testing.h"

namespace presum::checks {
namespace {

Blame of(const std::vector<double>& values, double tolerance, bool relative = false) {
  std::vector<RankNumber> held;
  for (const double value : values)
    held.push_back({value, static_cast<std::uint32_t>(held.size())});
  return relative ? far_from_middle(std::move(held), tolerance, true) : apart(held, tolerance);
}

TEST(Apart, NamesWhoIsFarFromTheMiddle) {
  EXPECT_EQ(of({4, 4, 4, 9}, 1).ranks, Ranks{3});
  EXPECT_FALSE(of({4, 4, 4, 9}, 1).everyone);
  EXPECT_EQ(of({1, 1.0005, 1, 1.1}, 1e-3, true).ranks, Ranks{3});
  EXPECT_TRUE(of({4, 5, 5, 4}, 1).ranks.empty()) << "within the tolerance";
}

TEST(Apart, NamesAllWhereNobodyIsInTheMinority) {
  EXPECT_EQ(of({4, 9}, 1).ranks, (Ranks{0, 1}));
  EXPECT_TRUE(of({4, 9}, 1).everyone);
  EXPECT_TRUE(of({4, 4, 9, 9}, 1).everyone);
  EXPECT_TRUE(of({4, 5, 6}, 1).everyone) << "each is near the middle one";
  EXPECT_TRUE(of({1, 1.0006, 1.0012}, 1e-3, true).ranks.empty()) << "of one norm";
  EXPECT_EQ(of({1, 3, kNaN, kNaN}, 1).ranks, (Ranks{0, 1, 2, 3}));
}

TEST(Apart, NamesWhoStandsApartFromRanksThatLieTogether) {
  EXPECT_EQ(of({-0.1, 0, 0.95, 0}, 1).ranks, Ranks{2});
  EXPECT_TRUE(of({-0.4, 0, 0.95, 0}, 1).everyone) << "the others do not lie together";
  EXPECT_TRUE(of({0, 0.1, 0.95, 0}, 1).ranks.empty()) << "within the tolerance";
}

TEST(Apart, LeavesOutWhatIsNoNumber) {
  EXPECT_TRUE(of({}, 1).ranks.empty());
  EXPECT_TRUE(of({4}, 1).ranks.empty());
  EXPECT_TRUE(of({4, kNaN}, 1).ranks.empty());
  EXPECT_EQ(of({kNaN, 4, 4, 9, INFINITY, 4}, 1).ranks, Ranks{3});
}

TEST(Agreement, IsBrokenAfterEnoughRecordsInARow) {
  Agreement agreement(2);
  EXPECT_FALSE(agreement.see({}, 5));
  EXPECT_FALSE(agreement.see({{1}, false}, 6));
  const auto broken = agreement.see({{1, 2}, true}, 7);
  ASSERT_TRUE(broken);
  EXPECT_EQ(broken->blame.ranks, (Ranks{1, 2})) << "as it is now";
  EXPECT_TRUE(broken->blame.everyone);
  EXPECT_EQ(broken->first_step, 6U);
  EXPECT_EQ(broken->equal_until, 5U);
  EXPECT_FALSE(agreement.see({}, 8));
  EXPECT_FALSE(agreement.see({{1}, false}, 9));
}

TEST(Agreement, ThatNeverHeldWasNeverSeenEqual) {
  Agreement agreement;
  const auto broken = agreement.see({{0}, false}, 0);
  ASSERT_TRUE(broken);
  EXPECT_EQ(broken->equal_until, std::nullopt);
  const Signal signal = sighting(&kClipNorm, 3, *broken, 0.9, Text{" differ"});
  EXPECT_EQ(signal.first_step, 0U);
  EXPECT_EQ(signal.last_step, 3U);
}

TEST(CountFacts, AVariableThatOnlySomeHaveDiffers) {
  Roster roster;
  roster.hello(who(0, 0), {.facts = {{"torch", "2.8"}, {"env.A", "1"}, {"rare", "x"}}});
  roster.hello(who(1, 1), {.facts = {{"torch", "2.9"}}});
  const auto all = count_facts(roster);
  EXPECT_TRUE(all.at("torch").differs);
  EXPECT_EQ(all.at("torch").count, 2U);
  EXPECT_TRUE(all.at("env.A").differs) << "unset on rank 1";
  EXPECT_FALSE(all.at("rare").differs) << "not known on rank 1";
}

}  // namespace
}  // namespace presum::checks
