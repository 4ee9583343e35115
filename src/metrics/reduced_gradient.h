// SPDX-License-Identifier: Apache-2.0
// What the reduced gradient G says exactly about the gradients that went in, if it is their mean:
// docs/metrics.md, "The consistency identity", "Corrections".
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "metrics/norm_sums.h"
#include "metrics/worker_record.h"
#include "presum/step_record.h"

namespace presum::metrics {

// One step's G. Borrows the workers' records for its life; not synchronised.
class ReducedGradient {
 public:
  // How far a reduction may miss the mean, relative to sum n_i^2: 16-bit reductions round.
  static constexpr double kTolerance = 0.02;

  // REQUIRES: `steps` and `workers` are parallel; `norms` is of `workers`.
  ReducedGradient(Steps steps, std::span<const WorkerRecord> workers, const NormSums& norms);

  // |G|, where all workers that read it hold the same, or where it follows from the rows; else NaN.
  double norm() const { return norm_; }
  // Workers hold different ones, or G is not the mean of their gradients.
  bool contradicted() const { return contradicted_; }

  // Sum over i != j of <g_i, g_j> = W^2 |G|^2 - sum n_i^2. None where a worker is missing, |G| is
  // not known, or G is contradicted.
  const std::optional<double>& cross_sum() const { return cross_sum_; }
  // Whether every worker told its <g_i, G>. REQUIRES: cross_sum().
  bool has_rows() const { return !rows_.empty(); }
  // Sum over j of <g_i, g_j> = W <g_i, G>. REQUIRES: has_rows().
  double row(std::size_t i) const { return rows_[i]; }
  // The same over j != i. REQUIRES: has_rows().
  double row_of_others(std::size_t i) const {
    return rows_[i] - workers_[i].grad_norm * workers_[i].grad_norm;
  }

  // G is not the mean of the gradients: nothing follows from it any longer.
  void distrust();

 private:
  std::optional<double> norm_that_was_read();
  double norm_of_rows(double workers) const;
  void derive_cross_sum(const NormSums& norms);
  bool rows_possible(double sum_norm, const NormSums& norms) const;

  std::span<const WorkerRecord> workers_;
  double norm_ = kNaN;
  bool inferred_ = false;  // the norm follows from the rows
  bool contradicted_ = false;
  std::optional<double> cross_sum_;
  std::vector<double> rows_;  // W <g_i, G> of every worker; empty: not known
};

}  // namespace presum::metrics
