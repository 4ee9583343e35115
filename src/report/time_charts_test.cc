// SPDX-License-Identifier: Apache-2.0
#include "report/time_charts.h"

#include <gtest/gtest.h>

namespace presum::report {
namespace {

WorkerRecord worker(std::uint32_t replica, double own, double reduction) {
  WorkerRecord w;
  w.rank = w.replica = replica;
  w.times.seconds = {own / 2, own / 4, own / 4, 0, 0, reduction};
  return w;
}

WorkerRecord without_times(std::uint32_t replica) {
  WorkerRecord w;
  w.rank = w.replica = replica;
  return w;
}

TEST(TimeCharts, UnknownTimesAreNoTimes) {
  const StepAxis axis(std::vector<std::uint64_t>{0, 1}, 8);
  TimeCharts charts(axis, 2);
  charts.add(0, {});
  charts.add(1, std::vector{without_times(0), without_times(1)});
  EXPECT_TRUE(charts.json().is_null());
}

TEST(TimeCharts, MeansAndLinesAreOverTheStepsWhoseTimesAreKnown) {
  const StepAxis axis(std::vector<std::uint64_t>{0, 1, 2}, 8);
  TimeCharts charts(axis, 3);
  charts.add(0, std::vector{without_times(0), without_times(1)});
  charts.add(1, std::vector{worker(0, 0.004, 0.006), worker(1, 0.008, 0.002)});
  charts.add(2, std::vector{worker(0, 0.008, 0.002), without_times(1)});
  const Json json = charts.json();
  EXPECT_EQ(json["steps"], 2);
  EXPECT_EQ(json["workers"][0]["steps"], 2);
  EXPECT_EQ(json["workers"][0]["mean"].dump(),
            R"({"data":0.003,"forward":0.0015,"backward":0.0015,"optimizer":0.0,"rest":0.0,)"
            R"("reduction":0.004})");
  EXPECT_EQ(json["workers"][0]["own"].dump(), "[null,4.0,8.0]");
  EXPECT_EQ(json["workers"][1]["own"].dump(), "[null,8.0,null]");
  EXPECT_EQ(json["workers"][2]["steps"], 0);
  EXPECT_TRUE(json["workers"][2]["mean"]["data"].is_null());
}

TEST(TimeCharts, WaitingCostsWhatIsBeyondTheWorkerThatWaitedLeast) {
  const StepAxis axis(std::vector<std::uint64_t>{1, 2}, 8);
  TimeCharts charts(axis, 2);  // the third rank is counted, not drawn
  charts.add(0, std::vector{worker(0, 1, 3), worker(1, 3, 1), worker(2, 2, 2)});
  charts.add(1, std::vector{worker(0, 1, 1), without_times(1), worker(2, 1, 1.5)});
  const Json json = charts.json();
  EXPECT_EQ(json["waited"], 3.5);
  EXPECT_EQ(json["total"], 16.5);
  EXPECT_EQ(json["workers"].size(), 2U);
}

TEST(TimeCharts, TimesThatAreNoNumbersAreLeftOut) {
  const StepAxis axis(std::vector<std::uint64_t>{1}, 8);
  TimeCharts charts(axis, 2);
  WorkerRecord odd = worker(0, 3, 1);
  odd.times.of(Phase::kRest) = kNaN;
  WorkerRecord endless = worker(1, 3, 1);
  endless.times.of(Phase::kReduction) = std::numeric_limits<double>::infinity();
  charts.add(0, std::vector{odd, endless});
  EXPECT_TRUE(charts.json().is_null());
}

}  // namespace
}  // namespace presum::report
