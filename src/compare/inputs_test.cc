// SPDX-License-Identifier: Apache-2.0
#include "compare/inputs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "compare/compare.h"
#include "compare/testing.h"
#include "compare/wording.h"

namespace presum::compare {
namespace {

using Kind = FingerprintKind;
using Names = std::vector<std::string>;

TEST(Inputs, FindsASettingThatChangesMidRun) {
  const auto c = changed_from(6, [](StepRecord& s) {
    for (WorkerRecord& w : s.workers) {
      set(w, Kind::kLearningRate, 0.05);
      set(w, Kind::kOptimizerSettings, std::uint64_t{43});
    }
  });
  expect_first(c, Stage::kConfiguration, 6, {10, 11, 12});
  EXPECT_TRUE(first(c).all_ranks);
  EXPECT_EQ(what_text(first(c)), "optimizer_settings, learning_rate");
  EXPECT_TRUE(contains(texts(first(c)), "learning_rate: 0.1 in A, 0.05 in B"));
  EXPECT_EQ(c.first()->last_identical, 5U);
  EXPECT_EQ(c.first()->at(Stage::kConfiguration).differing, 6U);
  EXPECT_EQ(c.first()->first_number, std::nullopt);
}

TEST(Inputs, FindsAnotherNumberOfMicroBatches) {
  const auto c = changed_from(0, [](StepRecord& s) { s.workers[2].micro_batches = 4; });
  expect_first(c, Stage::kConfiguration, 0, {12});
  EXPECT_TRUE(contains(texts(first(c)), "micro_batches: 2 in A, 4 in B"));
}

TEST(Inputs, LeavesOutWhereADataSetLiesAndHowFarItsReaderIs) {
  const auto c = changed_from(0, [](StepRecord& s) {
    for (WorkerRecord& w : s.workers) {
      set(w, Kind::kDataAttributes, std::uint64_t{9});
      set(w, Kind::kDataBatch, s.step + 100);
    }
  });
  EXPECT_EQ(c.outcome, Outcome::kIdentical);
}

TEST(Inputs, FindsOneSampleWithItsMicroBatchAndItsPositions) {
  const auto c = changed_at(4, [](StepRecord& s) {
    s.workers[1].samples.hashes[3] = 99;
    s.workers[1].indices[3] = 7;
    set(s.workers[1], Kind::kBatch, std::uint64_t{98});
  });
  expect_first(c, Stage::kData, 4, {11});
  EXPECT_EQ(what_text(first(c)), "samples (1 of 12 over all ranks)");
  EXPECT_EQ(texts(first(c)),
            Names{"1 of 4 rows differs (micro-batch 2 of 2); row 3 is sample 413 of the dataset "
                  "in A, 7 in B"});
}

TEST(Inputs, TellsRowsInAnotherOrderFromOtherRows) {
  const auto c =
      changed_at(4, [](StepRecord& s) { std::ranges::reverse(s.workers[1].samples.hashes); });
  expect_first(c, Stage::kData, 4, {11});
  EXPECT_TRUE(contains(texts(first(c)), "the same rows in another order"));
}

TEST(Inputs, TellsAnotherShardingFromOtherSamples) {
  const auto c = changed_from(2, [](StepRecord& s) {
    std::swap(s.workers[0].samples.hashes, s.workers[2].samples.hashes);
    std::swap(s.workers[0].indices, s.workers[2].indices);
  });
  expect_first(c, Stage::kData, 2, {10, 12});
  EXPECT_EQ(what_text(first(c)), "the same samples over all ranks, distributed differently");
}

TEST(Inputs, FindsLabelsBehindEqualRowsAndThoseThatNoForwardPassIsGiven) {
  for (const Kind kind : {Kind::kBatch, Kind::kLabels}) {
    const auto c = changed_at(4, [&](StepRecord& s) { set(s.workers[0], kind, std::uint64_t{1}); });
    expect_first(c, Stage::kData, 4, {10});
    EXPECT_TRUE(contains(texts(first(c)), "labels"));
    EXPECT_EQ(what_text(first(c)), "other tensors of the same samples (labels, targets, masks)");
  }
}

TEST(Inputs, RowsAndLabelsAreTwoFacts) {
  const auto c = changed_at(4, [](StepRecord& s) {
    set(s.workers[0], Kind::kBatch, std::uint64_t{1});
    s.workers[1].samples.hashes[0] = 99;
  });
  expect_first(c, Stage::kData, 4, {10, 11});
  EXPECT_EQ(what_text(first(c)).find("samples (1 of"), 0U) << what_text(first(c));
  EXPECT_TRUE(contains(texts(first(c)), "labels"));
}

TEST(Inputs, ComparesThinnedRowsByTheWholeBatch) {
  const auto thin = [](StepRecord& s) {
    s.workers[0].samples.thinned = 1;
    s.workers[0].samples.hashes.pop_back();
  };
  EXPECT_EQ(changed_at(4, thin).outcome, Outcome::kIdentical);
  const auto c = changed_at(4, [&](StepRecord& s) {
    thin(s);
    set(s.workers[0], Kind::kBatch, std::uint64_t{1});
  });
  expect_first(c, Stage::kData, 4, {10});
}

TEST(Inputs, DoesNotCompareSamplesOfAnotherSaltButTheirPositions) {
  const RunOptions other{.salt = 6};
  const auto equal = compare_steps(steps_of(4), steps_of(4), {}, other);
  EXPECT_EQ(equal.outcome, Outcome::kIdentical);
  auto b = steps_of(4);
  change_workers(b, [](WorkerRecord& w) { w.indices.clear(); });
  const auto unknown = compare_steps(steps_of(4), b, {}, other);
  EXPECT_EQ(unknown.outcome, Outcome::kIdentical);
  EXPECT_TRUE(contains(not_compared_texts(unknown.models[0]), "salts differ"));
  b = steps_of(4);
  b[2].workers[1].indices[0] = 5;
  expect_first(compare_steps(steps_of(4), b, {}, other), Stage::kData, 2, {11});
}

TEST(Inputs, FindsAGeneratorThatDrewOnceMore) {
  const auto c = changed_from(4, [](StepRecord& s) {
    set(s.workers[2], Kind::kRngTorch, s.step + 1);
    s.workers[2].loss += 1;
  });
  expect_first(c, Stage::kRandom, 4, {12});
  EXPECT_EQ(what_text(first(c)), "rng_torch");
  EXPECT_EQ(c.first()->first_number, Stage::kLoss);
}

TEST(Inputs, FindsOtherSamplesWhereNumbersOfWorkersDiffer) {
  auto b = steps_sharing_rows(3);
  b[2].workers[0].samples.hashes[0] = 1;
  const auto c = compare_steps(steps_sharing_rows(2), b);
  EXPECT_EQ(c.models[0].at(Stage::kData).first->step, 2U);
  EXPECT_EQ(what_text(*c.models[0].at(Stage::kData).first), "samples (1 of 12 over all ranks)");
}

}  // namespace
}  // namespace presum::compare
