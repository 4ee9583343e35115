// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "runlog/run_testing.h"

namespace presum::runlog {
namespace {

// ---- tables for people

using Rows = std::vector<std::vector<RunLog::Cell>>;

Rows table_of(const Path& run, std::string_view name, std::vector<std::string>& columns) {
  Rows out;
  const auto done = RunLog::open(run)->visit_table(name, [&](auto names, auto cells) {
    columns.assign(names.begin(), names.end());
    out.emplace_back(cells.begin(), cells.end());
  });
  EXPECT_TRUE(done) << done.error().message;
  return out;
}

TEST(RunLogTables, BeginWithACallForTheColumnsAlone) {
  const TempFolder folder;
  make_run(folder / "run", {});
  for (const char* name : {"steps", "workers", "groups", "findings", "checks", "audits"}) {
    std::vector<std::string> columns;
    EXPECT_EQ(table_of(folder / "run", name, columns), Rows(1)) << name;
    EXPECT_GT(columns.size(), 5U) << name;
  }
  EXPECT_EQ(RunLog::open(folder / "run")->visit_table("segment", [](auto, auto) {}).error().code,
            ErrorCode::kInvalidArgument);
}

TEST(RunLogTables, CanBeReadFromAStepOn) {
  const TempFolder folder;
  make_run(folder / "run", {plain_step(1, 0, 2), plain_step(1, 1, 3), plain_step(1, 2, 2)});
  const auto log = RunLog::open(folder / "run");
  ASSERT_EQ(log->steps_written(), 3U);
  const auto count = [&](std::string_view table, StepRows rows) {
    const auto frame = log->frame(table, rows);
    return std::get<std::vector<std::int64_t>>(frame->at(0).values).size();
  };
  EXPECT_EQ(count("steps", {}), 3U);
  EXPECT_EQ(count("workers", {}), 7U);
  EXPECT_EQ(count("steps", {.after = 1}), 2U);
  EXPECT_EQ(count("workers", {.after = 1}), 5U);
  EXPECT_EQ(count("workers", {.after = 1, .up_to = 2}), 3U);
  EXPECT_EQ(count("steps", {.after = 3}), 0U);
}

TEST(RunLogTables, HaveTheLastStepOfEachModel) {
  const TempFolder folder;
  std::vector<StepRecord> steps;
  for (std::uint64_t s = 0; s < 1200; ++s) steps.push_back(plain_step(1, s, 3));
  steps.push_back(plain_step(1, 0, 2));
  steps.back().model.model_index = 1;
  steps[5].model.model_index = 2;
  make_run(folder / "run", steps);
  const auto last = RunLog::open(folder / "run")->last_steps();
  ASSERT_TRUE(last) << last.error().message;
  ASSERT_EQ(last->size(), 2U) << "model 2 ended long ago";
  EXPECT_EQ(last->at(0).step, 1199U);
  EXPECT_EQ(last->at(0).workers.size(), 3U);
  EXPECT_EQ(last->at(1).model.model_index, 1U);
  EXPECT_EQ(last->at(1).workers.size(), 2U);
}

TEST(RunLogTables, HoldEveryAudit) {
  const TempFolder folder;
  std::vector<StepRecord> steps;
  for (const std::uint64_t wrong : {0, 0, 3}) {
    steps.push_back(plain_step(1, steps.size(), 2));
    AuditRecord audit{.elements = 10, .wrong = wrong, .gradient = Accumulation::kBF16};
    audit.order = SumOrder::kRing;
    steps.back().workers[1].audit = audit;
  }
  make_run(folder / "run", steps);
  std::vector<std::string> columns;
  const auto rows = table_of(folder / "run", "audits", columns);
  ASSERT_EQ(rows.size(), 4U) << "the columns, and three audits of which two found the same";
  const auto column = [&](std::string_view name) {
    return static_cast<std::size_t>(std::ranges::find(columns, name) - columns.begin());
  };
  const std::vector<RunLog::Cell>& last = rows.back();
  ASSERT_EQ(last.size(), columns.size());
  EXPECT_EQ(last[column("step")], RunLog::Cell(std::int64_t{2}));
  EXPECT_EQ(last[column("replica")], RunLog::Cell(std::int64_t{1}));
  EXPECT_EQ(last[column("wrong")], RunLog::Cell(std::int64_t{3}));
  EXPECT_EQ(last[column("gradient")], RunLog::Cell("bf16"));
  EXPECT_EQ(last[column("order")], RunLog::Cell("ring"));
  EXPECT_EQ(last[column("relative_l2")], RunLog::Cell());
  EXPECT_EQ(last[column("repeat")], RunLog::Cell("not-tried"));
}

}  // namespace
}  // namespace presum::runlog
