// SPDX-License-Identifier: Apache-2.0
// The samples of a step, rank by rank.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "presum/step_record.h"

namespace presum::checks {

struct Batch {
  bool known = false;        // row hashes arrived, and some remain after thinning
  std::uint64_t set = 0;     // hash of the distinct rows, in any order
  std::uint64_t order = 0;   // hash of all rows in their order
  std::size_t distinct = 0;  // rows
  std::size_t rows = 0;      // row hashes compared
  std::size_t repeated = 0;  // distinct rows that occur more than once
  // Several equal rows say nothing about the data.
  bool degenerate() const { return rows > 1 && distinct == 1; }
};

// Whether all ranks hold the same rows although no two whole batches (kBatch) are equal: the rows
// come from data that all share (a grid, positions) and are not samples. False if something is
// unknown, or for one rank.
bool rows_are_shared(const StepRecord& record, std::span<const Batch> batches);
// In the order of StepRecord::workers, with equal thinning.
std::vector<Batch> batches(const StepRecord& record);
// Whether row i of the samples is the sample with index i.
bool aligned(const WorkerRecord& worker);
// Whether both ranks know their indices and share none.
bool disjoint_indices(const WorkerRecord& a, const WorkerRecord& b);

}  // namespace presum::checks
