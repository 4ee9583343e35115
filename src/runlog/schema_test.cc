// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "runlog/run_testing.h"

namespace presum::runlog {
namespace {

TEST(RunLogViews, StepsHoldEveryColumn) {
  const TempFolder folder;
  const StepRecord want = full_step(1);
  make_run(folder / "run", {want});
  auto db = database(folder / "run");
  auto row = db.prepare(
      "SELECT step, segment, model_index, dp_group, workers_expected, workers, cosine_source, "
      "reduced_disagrees, distinct_gradients, sketch_size FROM steps");
  ASSERT_TRUE(row) << row.error().message;
  ASSERT_TRUE(*row->next());
  EXPECT_EQ(row->integer(0), want.step);
  EXPECT_EQ(row->small(1), 1U);
  EXPECT_EQ(row->small(2), 2U);
  EXPECT_EQ(row->small(3), 3U);
  EXPECT_EQ(row->small(4), 5U);
  EXPECT_EQ(row->small(5), 3U);
  EXPECT_EQ(row->text(6), "total-norm");
  EXPECT_EQ(row->small(7), 1U);
  EXPECT_EQ(row->small(8), 7U);
  EXPECT_EQ(row->small(9), 4096U);
  for (const auto& [name, field] : kStepNumbers) {
    auto number = db.prepare(std::string("SELECT ") + name + " FROM steps");
    ASSERT_TRUE(*number->next());
    EXPECT_EQ(number->number(0), want.*field) << name;
  }
}

TEST(RunLogViews, WorkersHoldEveryColumn) {
  const TempFolder folder;
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock);
  packet::Hello hello = hello_of(1, 2, 5);
  hello.header.identity.model_index = 2;
  hello.header.identity.dp_group = 3;
  ASSERT_TRUE(writer.add(hello));
  add_all(writer, {full_step(1)});
  ASSERT_TRUE(writer.close());
  auto db = database(folder / "run");
  auto row = db.prepare(
      "SELECT step, segment, model_index, dp_group, rank, replica, host, loss, weight, tokens, "
      "micro_batches, grad_norm, grad_max, nonfinite, loss_nonfinite, cosine_to_others, "
      "reduced_norm, optimizer_step, dropped, skipped_parameters, fingerprint, "
      "reduced_fingerprint FROM workers WHERE replica = 2");
  ASSERT_TRUE(row) << row.error().message;
  ASSERT_TRUE(*row->next());
  const double want[] = {static_cast<double>(1ULL << 40), 1, 2, 3, 21, 2};
  for (int c = 0; c < 6; ++c) EXPECT_EQ(row->number(c), want[c]) << c;
  EXPECT_EQ(row->text(6), "node-2");
  const double rest[] = {3.25, 2.5, 77, 14, 8.125, 9.5, 11, 1, -0.75, 6.5, 12, 13, 15};
  for (int c = 7; c < 20; ++c) EXPECT_EQ(row->number(c), rest[c - 7]) << c;
  EXPECT_EQ(row->text(20), "8000000000000001");
  EXPECT_EQ(row->text(21), "0000000000000abc");
  EXPECT_EQ(db.query_integer("SELECT count(*) FROM workers WHERE reduced_fingerprint IS NULL"), 2U);
}

TEST(RunLogViews, GroupsAndMissingWorkersAreNamed) {
  const TempFolder folder;
  FakeClock clock;
  Writer writer = open_writer(folder / "run", clock);
  packet::Hello hello = hello_of(1, 0, 5);
  hello.header.identity.model_index = 2;
  hello.header.identity.dp_group = 3;
  hello.facts.groups = {{0xFFFFFFFFFFFFFFF5ULL, 600, "model.layers.3"}};
  ASSERT_TRUE(writer.add(hello));
  add_all(writer, {full_step(1)});
  ASSERT_TRUE(writer.close());
  auto db = database(folder / "run");
  auto group = db.prepare(
      "SELECT \"group\", elements, norm_mean, norm_std, nonfinite, model_index, dp_group FROM "
      "groups");
  ASSERT_TRUE(group) << group.error().message;
  ASSERT_TRUE(*group->next());
  EXPECT_EQ(group->text(0), "model.layers.3");
  const double want[] = {600, 1.5, 0.5, 6, 2, 3};
  for (int c = 1; c < 7; ++c) EXPECT_EQ(group->number(c), want[c - 1]) << c;
  auto missing = db.prepare("SELECT replica, step, model_index, dp_group FROM missing");
  for (const std::uint32_t replica : {1U, 4U}) {
    ASSERT_TRUE(*missing->next());
    EXPECT_EQ(missing->small(0), replica);
    EXPECT_EQ(missing->integer(1), 1ULL << 40);
    EXPECT_EQ(missing->small(2), 2U);
    EXPECT_EQ(missing->small(3), 3U);
  }
}

}  // namespace
}  // namespace presum::runlog
