// SPDX-License-Identifier: Apache-2.0
#include "diagnose/batch_sizes.h"

#include <gtest/gtest.h>

#include <string>

#include "diagnose/testing.h"

namespace presum::diagnose {
namespace {

void size(StepRecord& r, std::uint32_t micro, std::uint64_t rows, std::uint32_t rank) {
  for (WorkerRecord& w : r.workers) {
    w.micro_batches = w.rank == rank ? micro : 4;
    w.samples.rows = w.rank == rank ? rows : 16;
    w.weight = 1;
  }
}

TEST(BatchSizes, AreNamedAfterFiveSteps) {
  Watched micro;
  micro.play(0, 3, [](StepRecord& r) { size(r, 2, 8, 1); });
  EXPECT_TRUE(micro.ids().empty());
  micro.play(4, 9, [](StepRecord& r) { size(r, 2, 8, 1); });
  ASSERT_EQ(micro.ids(), Ids{"token-imbalance"});
  EXPECT_EQ(micro.first().ranks, RankList{1});
  EXPECT_EQ(micro.first().first_step, 0U);
  EXPECT_EQ(micro.first().severity, Severity::kWarning);
  EXPECT_NE(micro.first().title.find("micro-batches"), std::string::npos);
  Watched rows;
  rows.play(0, 9, [](StepRecord& r) { size(r, 4, 64, 3); });
  ASSERT_EQ(rows.ids(), Ids{"token-imbalance"});
  EXPECT_EQ(rows.first().ranks, RankList{3});
  EXPECT_NE(rows.first().title.find("samples"), std::string::npos);
}

TEST(BatchSizes, SizesThatComeAndGoAreFine) {
  Watched w;
  w.play(0, 60, [](StepRecord& r) { size(r, 4, 12 + r.step % 4, 3); });
  EXPECT_TRUE(w.ids().empty()) << "batches by length";
  Watched joined;
  joined.play(0, 30, [](StepRecord& r) { size(r, r.step < 9 ? 4 : 0, 16, 3); });
  EXPECT_TRUE(joined.ids().empty()) << "a worker without input";
  Watched cut;
  cut.play(0, 30, [](StepRecord& r) { size(r, 2, 16, 3); });
  EXPECT_TRUE(cut.ids().empty()) << "as many rows in fewer micro-batches";
  Watched weighted;
  weighted.play(0, 30, [](StepRecord& r) {
    size(r, 4, 64, 3);
    for (WorkerRecord& x : r.workers) x.weight = static_cast<double>(x.samples.rows);
  });
  ASSERT_EQ(weighted.ids(), Ids{"token-imbalance"});
  EXPECT_EQ(weighted.first().severity, Severity::kInfo);
}

}  // namespace
}  // namespace presum::diagnose
