// SPDX-License-Identifier: Apache-2.0
// What the reduced gradient G says exactly about the contributed gradients if it is their mean:
// docs/metrics.md, "The consistency identity", "Corrections".
#pragma once

#include <optional>
#include <span>

#include "metrics/norm_sums.h"
#include "metrics/worker_record.h"
#include "presum/step_record.h"

namespace presum::metrics {

// G of one step. Not synchronized.
class ReducedGradient {
 public:
  // Accepted deviation of a reduction from the mean, relative to sum n_i^2: 16-bit reductions
  // round.
  static constexpr double kTolerance = 0.02;

  // REQUIRES: `norms` was computed from `workers`.
  ReducedGradient(std::span<const WorkerRecord> workers, const NormSums& norms);

  // |G|, if all ranks that read it hold the same; otherwise NaN.
  double norm() const { return norm_; }
  // The ranks hold different G, or G is not the mean of their gradients.
  bool contradicted() const { return contradicted_; }

  // Sum over i != j of <g_i, g_j> = W^2 |G|^2 - sum n_i^2. Empty if a rank is missing, |G| is
  // unknown, or G is contradicted.
  const std::optional<double>& cross_sum() const { return cross_sum_; }

  // Marks G as not the mean of the gradients; nothing more is derived from it.
  void distrust();

 private:
  double norm_ = kNaN;
  bool contradicted_ = false;
  std::optional<double> cross_sum_;
};

}  // namespace presum::metrics
