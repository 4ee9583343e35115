// SPDX-License-Identifier: Apache-2.0
// Cosines between workers' gradients from their sketches and exact norms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace presum::metrics {

// Gradients of V workers, all finite and non-zero, as sketches with their exact norms.
struct Directions {
  std::uint32_t sketch_size = 0;
  std::vector<std::span<const float>> sketches;  // each sketch_size long, finite, non-zero
  std::vector<double> norms;                     // ||g_i|| > 0
  std::vector<std::size_t> workers;              // their positions in the step
};

// The mean cosine over pairs, each worker's mean cosine with the others, and how sure they are.
// Estimates by the normalized sum of unit sketches: O(V k).
// REQUIRES: V >= 2.
class CosineEstimate {
 public:
  explicit CosineEstimate(const Directions& directions);

  double mean() const { return mean_; }
  // Standard error of mean(), from the scatter of the buckets' contributions.
  double standard_error() const { return standard_error_; }
  const std::vector<double>& to_others() const { return to_others_; }
  // Estimate of the sum over i != j of <g_i, g_j>, and its standard error.
  double cross_sum() const { return cross_sum_; }
  double cross_sum_error() const { return cross_sum_error_; }

  // Moves every off-diagonal dot product by the same amount so that they sum to `exact`.
  void correct_total(double exact_cross_sum);

  // Cosine of pair (i, j) with the correction, where it was made; `raw` is the sketches' own
  // cosine.
  double corrected(std::size_t i, std::size_t j, double raw) const;

 private:
  struct Buckets;
  void estimate_errors(const Buckets& buckets);

  std::vector<double> norms_;
  std::vector<double> to_others_;
  std::vector<double> rows_;
  double shift_ = 0;  // every <g_i, g_j> was moved by twice that
  double mean_ = 0;
  double standard_error_ = 0;
  double corrected_error_ = 0;
  double cross_sum_ = 0;
  double cross_sum_error_ = 0;
};

// The sketches' own cosines of all pairs i < j, row by row.
std::vector<double> pair_cosines(const Directions& directions);

}  // namespace presum::metrics
