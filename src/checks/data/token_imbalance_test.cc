// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "checks/engine/testing.h"

namespace presum::checks {
namespace {

void size(StepRecord& r, std::uint32_t micro, std::uint64_t rows, std::uint32_t rank) {
  for (WorkerRecord& w : r.workers) {
    w.micro_batches = w.rank == rank ? micro : 4;
    w.samples.rows = w.rank == rank ? rows : 16;
    w.weight = 1;
  }
}

TEST(BatchSizes, AreNamedAfterFiveSteps) {
  Watched micro = played(3, [](StepRecord& r) { size(r, 2, 8, 1); });
  EXPECT_TRUE(micro.ids().empty());
  micro.play(4, 9, [](StepRecord& r) { size(r, 2, 8, 1); });
  expect(micro, "token-imbalance",
         {.ranks = {1}, .severity = Severity::kWarning, .first_step = 0, .title = "micro-batches"});
  EXPECT_EQ(text_of(micro.first(), "by_rank"), "0,2-7: 4; 1: 2");
  Watched rows = played(9, [](StepRecord& r) { size(r, 4, 64, 3); });
  expect(rows, "token-imbalance", {.ranks = {3}, .title = "samples"});
}

TEST(BatchSizes, SizesThatComeAndGoAreFine) {
  // batches by length
  expect_quiet(played(60, [](StepRecord& r) { size(r, 4, 12 + r.step % 4, 3); }));
  // a rank without input
  expect_quiet(played(30, [](StepRecord& r) { size(r, r.step < 9 ? 4 : 0, 16, 3); }));
  // as many rows in fewer micro-batches
  expect_quiet(played(30, [](StepRecord& r) { size(r, 2, 16, 3); }));
  Watched weighted = played(30, [](StepRecord& r) {
    size(r, 4, 64, 3);
    for (WorkerRecord& x : r.workers) x.weight = static_cast<double>(x.samples.rows);
  });
  expect(weighted, "token-imbalance", {.severity = Severity::kInfo});
}

}  // namespace
}  // namespace presum::checks
