// SPDX-License-Identifier: Apache-2.0
#include "checks/engine/split.h"

#include <gtest/gtest.h>

#include <string>

namespace presum::checks {
namespace {

Split of(std::vector<std::uint64_t> values) {
  std::vector<RankValue> held;
  for (std::uint32_t r = 0; r < values.size(); ++r) held.push_back({values[r], r});
  return split(std::move(held));
}

TEST(Split, OneGroupForWorkersThatAgree) {
  EXPECT_FALSE(of({}).differs());
  EXPECT_FALSE(of({7}).differs());
  const Split all = of({7, 7, 7});
  EXPECT_FALSE(all.differs());
  EXPECT_EQ(all.known, 3U);
  EXPECT_EQ(all.groups[0].ranks, (Ranks{0, 1, 2}));
}

TEST(Split, BlamesTheMinority) {
  const Blame blame = of({7, 9, 7, 7, 8}).blame();
  EXPECT_EQ(blame.ranks, (Ranks{1, 4}));
  EXPECT_FALSE(blame.everyone);
}

TEST(Split, BlamesEveryoneWhereNoGroupHoldsMoreThanHalf) {
  for (const auto& values : {std::vector<std::uint64_t>{1, 2}, {1, 1, 2, 2}, {1, 1, 2, 3}}) {
    const Blame blame = of(values).blame();
    EXPECT_TRUE(blame.everyone);
    EXPECT_EQ(blame.ranks.size(), values.size());
  }
}

TEST(Split, NamesValuesAndSharedGroups) {
  const Split s = of({5, 9, 5, 9, 5, 1});
  EXPECT_EQ(s.text([](std::uint64_t v) { return std::to_string(v); }), "0,2,4: 5; 1,3: 9; 5: 1");
  EXPECT_EQ(shared_text(s), "0,2,4; 1,3");
  EXPECT_EQ(s.shared(), (Ranks{0, 1, 2, 3, 4}));
}

TEST(Split, CutsALongList) {
  const Split s = of({1, 2, 3, 4, 5, 6, 7, 8, 9});
  EXPECT_TRUE(s.text([](std::uint64_t v) { return std::to_string(v); }).ends_with("7: 8; ..."));
}

TEST(Ranks, AreSets) {
  EXPECT_TRUE(intersect({1, 5}, {2, 5}));
  EXPECT_FALSE(intersect({1, 5}, {2, 6}));
  EXPECT_FALSE(intersect({}, {2}));
  EXPECT_EQ(unite({1, 5}, {2, 5}), (Ranks{1, 2, 5}));
  EXPECT_EQ(without({1, 2, 5}, {2}), (Ranks{1, 5}));
  Ranks ranks{3};
  insert(ranks, 1);
  insert(ranks, 3);
  EXPECT_EQ(ranks, (Ranks{1, 3}));
}

}  // namespace
}  // namespace presum::checks
