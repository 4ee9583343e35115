// SPDX-License-Identifier: Apache-2.0
// The noise in the ranks' gradients, and the number of independent ranks that they are worth:
// docs/metrics.md, "Noise and effective workers".
#pragma once

#include "metrics/norm_sums.h"
#include "presum/step_record.h"

namespace presum::metrics {

// Fills in signal, noise and effective workers. `cross_sum` is the sum over i != j of <g_i, g_j>.
// Fills in nothing for fewer than two ranks; leaves out effective workers if all gradients are
// zero.
void fill_noise(double cross_sum, const NormSums& norms, StepRecord& record);

// Gradient noise scale S / |G|^2. Averages signal and noise separately over steps, with weights
// that halve every 35 steps, then divides. One per model; not synchronized.
class NoiseScale {
 public:
  // Takes the estimates of one step; skips NaN. Returns the running value, or NaN if the running
  // signal is not positive.
  double update(double signal, double noise);

 private:
  double signal_ = 0;
  double noise_ = 0;
  double weight_ = 0;
};

}  // namespace presum::metrics
