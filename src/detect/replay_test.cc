// SPDX-License-Identifier: Apache-2.0
#include "detect/replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

namespace presum::detect {
namespace {

const Progress kQuiet = [](double) {};

std::vector<StepRecord> recorded(std::size_t count, std::uint32_t workers,
                                 Null null = Null::kNormal) {
  Generator generator({workers, null, 2}, 5);
  std::vector<StepRecord> out;
  for (std::size_t i = 0; i < count; ++i) out.push_back(generator.next({}));
  return out;
}

TEST(Replay, KeepsEveryWorkersValuesTogether) {
  const auto steps = recorded(7, 5);
  Replay replay(steps, 1, 3);
  for (std::uint64_t s = 0; s < 40; ++s) {
    const StepRecord& from = steps[s % 7];
    const StepRecord& r = replay.next();
    EXPECT_EQ(r.step, s);
    std::vector<std::size_t> order;
    for (const WorkerRecord& w : r.workers) {
      EXPECT_EQ(w.replica, order.size());
      const auto at = std::ranges::find(from.workers, w.loss, &WorkerRecord::loss);
      ASSERT_NE(at, from.workers.end());
      order.push_back(static_cast<std::size_t>(at - from.workers.begin()));
      EXPECT_EQ(w.grad_norm, at->grad_norm);
    }
    std::size_t pair = 0;
    for (std::size_t i = 0; i < 5; ++i) {
      EXPECT_EQ(r.groups[2].norms[i], from.groups[2].norms[order[i]]);
      for (std::size_t j = i + 1; j < 5; ++j, ++pair) {
        std::size_t at = 0;
        for (std::size_t a = 0; a < 5; ++a) {
          for (std::size_t b = a + 1; b < 5; ++b, ++at) {
            const bool same = std::minmax(a, b) == std::minmax(order[i], order[j]);
            if (same) {
              EXPECT_EQ(r.cosines[pair], from.cosines[at]);
            }
          }
        }
      }
    }
  }
}

TEST(Replay, OrdersAreAllAlikeLikelyAndLastABlock) {
  const auto steps = recorded(1, 3);
  Replay replay(steps, 4, 1);
  std::map<std::vector<double>, int> orders;
  std::vector<double> last;
  for (int s = 0; s < 4 * 6000; ++s) {
    std::vector<double> order;
    for (const WorkerRecord& w : replay.next().workers) order.push_back(w.loss);
    if (s % 4 == 0) {
      ++orders[order];
    } else {
      EXPECT_EQ(order, last);
    }
    last = order;
  }
  EXPECT_EQ(orders.size(), 6U);
  for (const auto& [order, count] : orders) EXPECT_NEAR(count, 1000, 120);  // 4 sd
}

// A worker that always stands out alarms as it is; in another order at each step it is nobody.
TEST(Replay, AnUnlikeWorkerIsNobodyWhenOrdersChange) {
  auto steps = recorded(200, 4);
  for (StepRecord& s : steps) s.workers[1].loss += 3;
  EXPECT_LE(false_alarms(steps, 1, 100, 5000, 1, kQuiet).alarms.count, 50U) << "the promise";
  EXPECT_GT(false_alarms(steps, 5000, 100, 5000, 1, kQuiet).alarms.count, 50U);
}

}  // namespace
}  // namespace presum::detect
