// SPDX-License-Identifier: Apache-2.0
// The samples of a step, worker by worker.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "presum/step_record.h"

namespace presum::checks {

struct Batch {
  bool known = false;        // row hashes came, and some are left after thinning
  std::uint64_t set = 0;     // of the distinct rows, in any order
  std::uint64_t order = 0;   // of all rows in their order
  std::size_t distinct = 0;  // rows
  std::size_t rows = 0;      // row hashes compared
  std::size_t repeated = 0;  // distinct rows that are there more than once
  // Several rows, all equal: no sign of anything.
  bool degenerate() const { return rows > 1 && distinct == 1; }
};

// Whether all workers hold the same rows, and the whole batches (kBatch) of no two are equal: what
// the rows were read from is shared by all (a grid, positions), and no sample. False where
// something is not known, and for one worker.
bool rows_are_shared(const StepRecord& record, std::span<const Batch> batches);
// In the order of StepRecord::workers, all thinned alike.
std::vector<Batch> batches(const StepRecord& record);
// Whether row i of the samples is the sample of index i.
bool aligned(const WorkerRecord& worker);
// Whether both workers know their indices and share none.
bool disjoint_indices(const WorkerRecord& a, const WorkerRecord& b);

}  // namespace presum::checks
