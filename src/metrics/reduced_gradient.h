// SPDX-License-Identifier: Apache-2.0
// What the reduced gradient G says exactly about the gradients that went in, if it is their mean:
// docs/metrics.md, "The consistency identity", "Corrections".
#pragma once

#include <optional>
#include <span>

#include "metrics/norm_sums.h"
#include "metrics/worker_record.h"
#include "presum/step_record.h"

namespace presum::metrics {

// One step's G. Not synchronized.
class ReducedGradient {
 public:
  // How far a reduction may miss the mean, relative to sum n_i^2: 16-bit reductions round.
  static constexpr double kTolerance = 0.02;

  // REQUIRES: `norms` is of `workers`.
  ReducedGradient(std::span<const WorkerRecord> workers, const NormSums& norms);

  // |G|, where all workers that read it hold the same; else NaN.
  double norm() const { return norm_; }
  // Workers hold different ones, or G is not the mean of their gradients.
  bool contradicted() const { return contradicted_; }

  // Sum over i != j of <g_i, g_j> = W^2 |G|^2 - sum n_i^2. None where a worker is missing, |G| is
  // not known, or G is contradicted.
  const std::optional<double>& cross_sum() const { return cross_sum_; }

  // G is not the mean of the gradients: nothing follows from it any longer.
  void distrust();

 private:
  double norm_ = kNaN;
  bool contradicted_ = false;
  std::optional<double> cross_sum_;
};

}  // namespace presum::metrics
