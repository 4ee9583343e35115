// SPDX-License-Identifier: Apache-2.0
// The packets of one step become one StepRecord: formulas in docs/metrics.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "packet/packet.h"
#include "presum/step_record.h"

namespace presum::metrics {

struct StepInput {
  std::uint32_t workers_expected = 0;
  // One per worker, by replica, no replica twice, missing ones left out. Borrowed for the call.
  std::span<const packet::Step* const> workers;
  std::vector<std::uint32_t> missing;  // see StepRecord
  bool pairwise = true;                // also the W x W cosines: O(W^2 k) instead of O(W k)
};

// Pure; safe from any thread. No worker: a record of NaNs. One worker: dispersions are 0, cosines
// undefined. A worker whose loss or norm is not finite is left out of the dispersions, one whose
// gradient is zero or not finite is left out of the cosines, and so is one whose sketch is missing
// unless the step has a Gram matrix.
// Leaves noise_scale NaN: that needs the steps before (NoiseScale).
StepRecord compute(const StepInput& input);

// Gradient noise scale S / |G|^2: averages signal and noise on their own over steps, with weights
// that fall by half every 35 steps, then divides. One per model; not synchronised.
class NoiseScale {
 public:
  // Takes one step's estimates; NaN is skipped. Returns the running value, NaN where the running
  // signal is not positive.
  double update(double signal, double noise);

 private:
  double signal_ = 0;
  double noise_ = 0;
  double weight_ = 0;
};

}  // namespace presum::metrics
