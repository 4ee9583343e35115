// SPDX-License-Identifier: Apache-2.0
// How much of the workers' gradients is noise, and for how many independent workers they count:
// docs/metrics.md, "Noise and effective workers".
#pragma once

#include "metrics/norm_sums.h"
#include "presum/step_record.h"

namespace presum::metrics {

// Fills in signal, noise and effective workers. `cross_sum` is the sum over i != j of <g_i, g_j>.
// Nothing for fewer than two workers; no effective workers where all gradients are zero.
void fill_noise(double cross_sum, const NormSums& norms, StepRecord& record);

// Gradient noise scale S / |G|^2: averages signal and noise on their own over steps, with weights
// that fall by half every 35 steps, then divides. One per model; not synchronized.
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
