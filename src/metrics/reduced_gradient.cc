// SPDX-License-Identifier: Apache-2.0
#include "metrics/reduced_gradient.h"

#include <cmath>

namespace presum::metrics {

ReducedGradient::ReducedGradient(std::span<const WorkerRecord> workers, const NormSums& norms) {
  // Every rank that read a norm must hold the same bits.
  const WorkerRecord* first = nullptr;
  for (const WorkerRecord& w : workers) {
    if (std::isnan(w.reduced_norm) && w.reduced_fingerprint == 0) continue;
    if (first == nullptr) first = &w;
    if (w.reduced_fingerprint != first->reduced_fingerprint) contradicted_ = true;
  }
  if (first == nullptr || contradicted_) return;
  norm_ = first->reduced_norm;
  if (!norms.complete || !std::isfinite(norm_)) return;
  const double sum_norm = norms.workers * norm_;
  cross_sum_ = sum_norm * sum_norm - norms.squares;
  if (std::abs(*cross_sum_) > norms.pair_weight() + kTolerance * norms.squares) distrust();
}

void ReducedGradient::distrust() {
  contradicted_ = true;
  cross_sum_.reset();
}

}  // namespace presum::metrics
