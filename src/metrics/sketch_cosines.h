// SPDX-License-Identifier: Apache-2.0
// The cosines of a step from the ranks' sketches, corrected with the reduced gradient:
// docs/metrics.md, "Cosines from sketches", "Corrections", "Norm of the mean gradient".
#pragma once

#include <optional>
#include <span>

#include "metrics/direction.h"
#include "metrics/norm_sums.h"
#include "metrics/reduced_gradient.h"
#include "metrics/worker_record.h"
#include "presum/step_record.h"

namespace presum::metrics {

// An exact number further from the sketches' estimate than this many standard errors contradicts
// them.
inline constexpr double kSketchSigmas = 6;

// Selects the ranks with a finite, non-zero gradient and a usable sketch as long as the first such
// sketch; borrows the sketches. REQUIRES: `steps` and `workers` are parallel.
Directions directed_workers(Steps steps, std::span<const WorkerRecord> workers);

// Not synchronized; borrows its arguments.
class SketchCosines {
 public:
  SketchCosines(const Directions& directed, const NormSums& norms, StepRecord& record);

  // Fills in the norm of the mean gradient, without corrections, if all gradients are known.
  void fill_mean_norm();
  // Fills in the cosines, corrected if G fits the sketches; otherwise distrusts G. Fills in nothing
  // if fewer than two ranks have a direction.
  void fill_cosines(bool pairwise, ReducedGradient& reduced);
  // Estimate of the sum over i != j of <g_i, g_j>, with the corrections made so far; empty if a
  // rank's direction is unknown.
  std::optional<double> cross_sum() const;

 private:
  bool every_gradient_counted() const;
  CosineSource correct(ReducedGradient& reduced);
  bool fits(const ReducedGradient& reduced) const;
  void fill_matrix();

  const Directions& directed_;
  const NormSums& norms_;
  StepRecord& record_;
  std::optional<CosineEstimate> estimate_;  // set for two or more ranks
};

}  // namespace presum::metrics
