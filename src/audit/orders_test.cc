// SPDX-License-Identifier: Apache-2.0
#include "audit/orders.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace presum::audit {
namespace {

// The additions in parentheses, such as "((0+1)+2)".
std::string written(const Order& order, std::uint32_t workers) {
  std::vector<std::string> rows;
  for (std::uint32_t w = 0; w < workers; ++w) rows.push_back(std::to_string(w));
  for (const Addition& step : order.additions) {
    rows[step.into] = "(" + rows[step.into] + "+" + rows[step.from] + ")";
  }
  return rows[order.root];
}

TEST(Orders, AreWhatTheyAreCalled) {
  EXPECT_EQ(written(ring(4, 0), 4), "(((0+1)+2)+3)");
  EXPECT_EQ(written(ring(4, 2), 4), "(((2+3)+0)+1)");
  EXPECT_EQ(written(ring_down(4, 2), 4), "(((2+1)+0)+3)");
  EXPECT_EQ(written(tree(4), 4), "((0+1)+(2+3))");
  EXPECT_EQ(written(halving(4), 4), "((0+2)+(1+3))");
  EXPECT_EQ(written(tree(8), 8), "(((0+1)+(2+3))+((4+5)+(6+7)))");
  EXPECT_EQ(written(halving(8), 8), "(((0+4)+(2+6))+((1+5)+(3+7)))");
}

TEST(Orders, UseEveryWorkerOnceForAnyNumberOfWorkers) {
  for (std::uint32_t workers = 1; workers <= 20; ++workers) {
    for (const Order& order : {ring(workers, workers / 2), ring_down(workers, 0), tree(workers),
                               halving(workers), in_turn(arrival(workers, 5))}) {
      std::set<std::uint32_t> added = {order.root};
      for (const Addition& step : order.additions) added.insert(step.from);
      EXPECT_EQ(order.additions.size(), workers - 1);
      EXPECT_EQ(added.size(), workers);
    }
  }
}

TEST(Orders, ArrivalIsAPermutationThatTheSeedFixes) {
  const auto turn = arrival(16, 3);
  EXPECT_EQ(std::set(turn.begin(), turn.end()).size(), 16U);
  EXPECT_EQ(turn, arrival(16, 3));
  EXPECT_NE(turn, arrival(16, 4));
}

TEST(Adder, RoundsEveryPartialSum) {
  Rows<float> rows(3);
  rows.count = 1;
  rows[0][0] = 256;
  rows[1][0] = 1;
  rows[2][0] = 1;
  Adder<float> adder(3);
  std::vector<float> out(kBlock);
  adder.add(rows, ring(3, 0), {Dtype::kBF16, Dtype::kBF16}, out);
  EXPECT_EQ(out[0], 256.F);  // 257 is not a bf16, twice
  adder.add(rows, ring(3, 1), {Dtype::kBF16, Dtype::kBF16}, out);
  EXPECT_EQ(out[0], 258.F);  // (1 + 1) + 256
  adder.add(rows, ring(3, 0), {}, out);
  EXPECT_EQ(out[0], 258.F);
}

TEST(Adder, LeavesTheRowsAsTheyAre) {
  Rows<double> rows(4);
  rows.count = 2;
  for (std::uint32_t w = 0; w < 4; ++w) rows[w][0] = rows[w][1] = 1.0 + w;
  const auto before = rows.values;
  Adder<double> adder(4);
  std::vector<double> out(kBlock);
  adder.add(rows, tree(4), {Dtype::kF64, Dtype::kF64}, out);
  EXPECT_EQ(out[1], 10.0);
  EXPECT_EQ(rows.values, before);
}

}  // namespace
}  // namespace presum::audit
