// SPDX-License-Identifier: Apache-2.0
#include "cli/times.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "cli/testing.h"

namespace presum::cli {
namespace {

WorkerRecord worker(std::uint32_t rank, double own, double waiting) {
  WorkerRecord w;
  w.rank = w.replica = rank;
  w.times = times_of(own, waiting);
  return w;
}

TEST(TimeTable, CostOfWaitingIsBeyondWhatTheOneWaitsThatWaitsLeast) {
  TimeTable table;
  table.add(std::vector{worker(0, 4, 7), worker(1, 10, 1)});
  table.add(std::vector{worker(0, 4, 1), worker(1, 4, 2), WorkerRecord()});
  table.add(std::vector{WorkerRecord()});
  EXPECT_EQ(table.steps, 2U);
  EXPECT_EQ(table.ranks.size(), 2U);
  EXPECT_NEAR(table.waited, 0.006 + 0.001, 1e-12);
  EXPECT_NEAR(table.recorded, 0.033, 1e-12);
  EXPECT_NEAR(table.ranks[1].own(), 0.007, 1e-12);
  EXPECT_NEAR(table.ranks[1].on_processor(), 0.5, 1e-12);
  ASSERT_TRUE(table.slowest());
  EXPECT_EQ(table.slowest()->first, 1U);
  EXPECT_NEAR(table.slowest()->second, 7.0 / 4, 1e-12);
}

TEST(TimeTable, OneRankIsNotSlowestAndWaitsForNobody) {
  TimeTable table;
  table.add(std::vector{worker(3, 4, 7)});
  EXPECT_FALSE(table.slowest());
  EXPECT_EQ(table.waited, 0);
  const auto text = lines(times_text(table));
  ASSERT_EQ(text.size(), 3U);
  EXPECT_EQ(text[2], "waiting for slower ranks: 0 rank-seconds, 0.0 % of all recorded time");
}

TEST(TimeTable, DeviceTimesSayNothingOfTheProcessor) {
  TimeTable table;
  WorkerRecord w = worker(0, 4, 7);
  w.times.on_device = true;
  table.add(std::vector{w});
  EXPECT_TRUE(std::isnan(table.ranks[0].on_processor()));
  EXPECT_EQ(words(lines(times_text(table)).at(1)).back(), "-");
}

TEST(TimeTable, ShowsTheSlowestAndTheFastestOfManyRanks) {
  TimeTable table;
  std::vector<WorkerRecord> workers;
  for (std::uint32_t rank = 0; rank < 40; ++rank) workers.push_back(worker(rank, rank + 1, 0));
  table.add(workers);
  const auto text = lines(times_text(table));
  ASSERT_EQ(text.size(), 14U);
  EXPECT_EQ(words(text[1])[0], "39");
  EXPECT_EQ(words(text[1])[1], "slowest");
  EXPECT_EQ(words(text[8])[0], "32");
  EXPECT_EQ(words(text[9])[0], "0");
  EXPECT_EQ(words(text[9])[1], "fastest");
  EXPECT_EQ(words(text[10])[0], "mean");
  EXPECT_EQ(text[11], "31 ranks between these are in the mean only");
  EXPECT_EQ(times_json(table)["ranks"].size(), 40U);
}

TEST(TimeTable, CostIsInUnitsThatPeopleRead) {
  const auto cost = [](double waited) {
    TimeTable table;
    table.waited = waited;
    table.recorded = 2 * waited;
    return times_text(table);
  };
  EXPECT_NE(cost(90).find("1.5 rank-minutes, 50.0 %"), std::string::npos);
  EXPECT_NE(cost(9000).find("2.5 rank-hours"), std::string::npos);
}

TEST(SlowRank, IsLongerByItsShareAndByAMillisecond) {
  const auto slow = [](double a, double b, double c) {
    return slow_rank(std::vector{worker(5, a, 0), worker(6, b, 0), worker(7, c, 0)});
  };
  ASSERT_TRUE(slow(10, 14.2, 10));
  EXPECT_EQ(slow(10, 14.2, 10)->rank, 6U);
  EXPECT_NEAR(slow(10, 14.2, 10)->factor, 1.42, 1e-9);
  EXPECT_FALSE(slow(10, 10.3, 10)) << "3 %";
  EXPECT_FALSE(slow(1, 1.9, 1)) << "0.9 ms";
  EXPECT_FALSE(slow_rank(std::vector{worker(0, 10, 0), WorkerRecord()})) << "nobody beside it";
  EXPECT_FALSE(slow_rank({}));
}

}  // namespace
}  // namespace presum::cli
