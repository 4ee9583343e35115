// SPDX-License-Identifier: Apache-2.0
// Cosines between the gradients of ranks, from their sketches and exact norms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace presum::metrics {

// Gradients of V ranks, all finite and non-zero: sketches with their exact norms.
struct Directions {
  std::uint32_t sketch_size = 0;
  std::vector<std::span<const float>> sketches;  // each of length sketch_size, finite, non-zero
  std::vector<double> norms;                     // ||g_i|| > 0
  std::vector<std::size_t> workers;              // their positions in the step
};

// The mean cosine over pairs, each rank's mean cosine with the others, and their errors. Estimated
// from the sum of the unit sketches in O(V k). REQUIRES: V >= 2.
class CosineEstimate {
 public:
  explicit CosineEstimate(const Directions& directions);

  double mean() const { return mean_; }
  // Standard error of mean(), from the variation of the contributions of the buckets.
  double standard_error() const { return standard_error_; }
  const std::vector<double>& to_others() const { return to_others_; }
  // Estimate of the sum over i != j of <g_i, g_j>, and its standard error.
  double cross_sum() const { return cross_sum_; }
  double cross_sum_error() const { return cross_sum_error_; }

  // Adds the same amount to every off-diagonal dot product so that they sum to `exact_cross_sum`.
  void correct_total(double exact_cross_sum);

  // Returns the cosine of pair (i, j), corrected if correct_total() was called; `raw` is the cosine
  // of the sketches.
  double corrected(std::size_t i, std::size_t j, double raw) const;

 private:
  struct Buckets;
  void estimate_errors(const Buckets& buckets);

  std::vector<double> norms_;
  std::vector<double> to_others_;
  std::vector<double> rows_;
  double shift_ = 0;  // half of what was added to every <g_i, g_j>
  double mean_ = 0;
  double standard_error_ = 0;
  double corrected_error_ = 0;
  double cross_sum_ = 0;
  double cross_sum_error_ = 0;
};

// Returns the cosines of the sketches for all pairs i < j, row-major.
std::vector<double> pair_cosines(const Directions& directions);

}  // namespace presum::metrics
