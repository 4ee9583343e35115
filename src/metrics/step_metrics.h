// SPDX-License-Identifier: Apache-2.0
// The packets of one step become one StepRecord: formulas in docs/metrics.md.
#pragma once

#include <cstdint>
#include <vector>

#include "metrics/noise.h"
#include "metrics/worker_record.h"
#include "presum/step_record.h"

namespace presum::metrics {

struct StepInput {
  std::uint32_t workers_expected = 0;
  std::uint32_t left_out = 0;  // of those; see StepRecord
  // One per worker, by replica, no replica twice, missing ones left out. Borrowed for the call.
  Steps workers;
  std::vector<std::uint32_t> missing;  // see StepRecord
  NoiseScale* noise_scale = nullptr;   // the model's, of the steps before; null: it stays NaN
  bool pairwise = true;                // also the W x W cosines: O(W^2 k) instead of O(W k)
};

// Safe from any thread. No worker: a record of NaNs. One worker: dispersions are 0, cosines
// undefined. A worker whose loss or norm is not finite is left out of the dispersions, one whose
// gradient is zero or not finite is left out of the cosines, and so is one whose sketch is missing
// unless the step has a Gram matrix.
// Updates input.noise_scale; else pure.
StepRecord compute(const StepInput& input);

}  // namespace presum::metrics
