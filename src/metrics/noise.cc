// SPDX-License-Identifier: Apache-2.0
#include "metrics/noise.h"

#include <algorithm>
#include <cmath>

namespace presum::metrics {

void fill_noise(double cross_sum, const NormSums& norms, StepRecord& record) {
  const double w = norms.workers;
  if (w < 2) return;
  const double sum_squares = std::max(0.0, norms.squares + cross_sum);  // |sum g_i|^2
  const double mean = norms.squares / w;
  const double mean_gradient = (norms.squares + cross_sum) / (w * w);
  record.signal = (w * mean_gradient - mean) / (w - 1);
  record.noise = (mean - mean_gradient) * w / (w - 1);
  if (norms.squares > 0) {
    record.effective_workers = sum_squares > 0 ? std::min(w, w * norms.squares / sum_squares) : w;
  }
}

double NoiseScale::update(double signal, double noise) {
  constexpr double kRate = 0.02;
  if (std::isfinite(signal) && std::isfinite(noise)) {
    signal_ += kRate * (signal - signal_);
    noise_ += kRate * (noise - noise_);
    weight_ += kRate * (1 - weight_);
  }
  return weight_ > 0 && signal_ > 0 ? std::max(0.0, noise_) / signal_ : kNaN;
}

}  // namespace presum::metrics
