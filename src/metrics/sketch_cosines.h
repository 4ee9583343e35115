// SPDX-License-Identifier: Apache-2.0
// The cosines of a step from the workers' sketches, corrected by what the reduced gradient says:
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

// An exact number that is further from the sketches' than this many standard errors contradicts
// them.
inline constexpr double kSketchSigmas = 6;

// Of workers with a finite, non-zero gradient and a usable sketch of the length of the first such;
// borrows the sketches. REQUIRES: `steps` and `workers` are parallel.
Directions directed_workers(Steps steps, std::span<const WorkerRecord> workers);

// Not synchronized; borrows all that it is given.
class SketchCosines {
 public:
  SketchCosines(const Directions& directed, const NormSums& norms, StepRecord& record);

  // Fills in the norm of the mean gradient, where all gradients are known: before any correction.
  void fill_mean_norm();
  // Fills in the cosines, corrected where G fits the sketches; else G is distrusted. Nothing where
  // fewer than two workers have a direction.
  void fill_cosines(bool pairwise, ReducedGradient& reduced);
  // Estimate of the sum over i != j of <g_i, g_j>, with the corrections made so far; none where a
  // worker's direction is not known.
  std::optional<double> cross_sum() const;

 private:
  bool every_gradient_counted() const;
  CosineSource correct(ReducedGradient& reduced);
  bool fits(const ReducedGradient& reduced) const;
  void fill_matrix();

  const Directions& directed_;
  const NormSums& norms_;
  StepRecord& record_;
  std::optional<CosineEstimate> estimate_;  // of two or more workers
};

}  // namespace presum::metrics
