// SPDX-License-Identifier: Apache-2.0
// Turns the packets of one step into one StepRecord; docs/metrics.md has the formulas.
#pragma once

#include <cstdint>
#include <vector>

#include "metrics/noise.h"
#include "metrics/worker_record.h"
#include "presum/step_record.h"

namespace presum::metrics {

struct StepInput {
  std::uint32_t workers_expected = 0;
  std::uint32_t left_out = 0;  // how many of these continued without the step; see StepRecord
  // One per rank, sorted by replica, without repeats and without missing ones. Borrowed for the
  // call.
  Steps workers;
  std::vector<std::uint32_t> missing;  // see StepRecord
  // of the model, with its previous steps; null: noise_scale stays NaN
  NoiseScale* noise_scale = nullptr;
  bool pairwise = true;  // also compute the W x W cosines: O(W^2 k) instead of O(W k)
};

// Thread-safe. Without ranks the record is all NaN. With one rank the dispersions are 0 and the
// cosines undefined. A rank whose loss or norm is not finite is left out of the dispersions. A rank
// whose gradient is zero or not finite is left out of the cosines; so is a rank without a sketch,
// unless the step has a Gram matrix. Updates input.noise_scale; otherwise pure.
StepRecord compute(const StepInput& input);

}  // namespace presum::metrics
