// SPDX-License-Identifier: Apache-2.0
#include "metrics/sketch_cosines.h"

#include <algorithm>
#include <cmath>

#include "base/pairs.h"

namespace presum::metrics {
namespace {

bool usable(std::span<const float> sketch) {
  double squares = 0;
  for (const float x : sketch) squares += static_cast<double>(x) * static_cast<double>(x);
  return std::isfinite(squares) && squares > 0;
}

}  // namespace

Directions directed_workers(Steps steps, std::span<const WorkerRecord> workers) {
  Directions d;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto& sketch = steps[i]->sketch;
    const double norm = workers[i].grad_norm;
    if (sketch.empty() || !std::isfinite(norm) || norm == 0 || !usable(sketch)) continue;
    if (d.sketch_size == 0) d.sketch_size = static_cast<std::uint32_t>(sketch.size());
    if (sketch.size() != d.sketch_size) continue;
    d.sketches.emplace_back(sketch);
    d.norms.push_back(norm);
    d.workers.push_back(i);
  }
  return d;
}

SketchCosines::SketchCosines(const Directions& directed, const NormSums& norms, StepRecord& record)
    : directed_(directed), norms_(norms), record_(record) {
  if (directed.workers.size() >= 2) estimate_.emplace(directed);
}

// |mean of g_i|^2 = (sum n_i^2 + sum over i != j of <g_i, g_j>) / W^2.
void SketchCosines::fill_mean_norm() {
  if (!norms_.complete || !estimate_ || !every_gradient_counted()) return;
  const double w = norms_.workers;
  const double squared = std::max(0.0, norms_.squares + estimate_->cross_sum()) / (w * w);
  record_.mean_norm = std::sqrt(squared);
  if (squared > 0) {
    record_.mean_norm_error = estimate_->cross_sum_error() / (2 * w * w * record_.mean_norm);
  }
}

void SketchCosines::fill_cosines(bool pairwise, ReducedGradient& reduced) {
  if (!estimate_) return;
  record_.cosine_source = correct(reduced);
  record_.cosine_mean = estimate_->mean();
  const double half = 1.96 * estimate_->standard_error();
  record_.cosine_low = std::max(-1.0, estimate_->mean() - half);
  record_.cosine_high = std::min(1.0, estimate_->mean() + half);
  for (std::size_t i = 0; i < directed_.workers.size(); ++i) {
    record_.workers[directed_.workers[i]].cosine_to_others = estimate_->to_others()[i];
  }
  if (pairwise) fill_matrix();
}

std::optional<double> SketchCosines::cross_sum() const {
  if (!estimate_ || !every_gradient_counted()) return std::nullopt;
  return estimate_->cross_sum();
}

// Zero gradients have no direction and add nothing. A rank left out for another reason is unknown.
bool SketchCosines::every_gradient_counted() const {
  const auto zero = std::ranges::count_if(record_.workers,
                                          [](const WorkerRecord& w) { return w.grad_norm == 0; });
  return directed_.workers.size() + static_cast<std::size_t>(zero) == record_.workers.size();
}

CosineSource SketchCosines::correct(ReducedGradient& reduced) {
  if (!reduced.cross_sum() || !every_gradient_counted()) return CosineSource::kSketch;
  if (!fits(reduced)) {
    reduced.distrust();
    return CosineSource::kSketch;
  }
  estimate_->correct_total(*reduced.cross_sum());
  return CosineSource::kTotalNorm;
}

bool SketchCosines::fits(const ReducedGradient& reduced) const {
  const double slack =
      kSketchSigmas * estimate_->cross_sum_error() + ReducedGradient::kTolerance * norms_.squares;
  return std::abs(*reduced.cross_sum() - estimate_->cross_sum()) <= slack;
}

void SketchCosines::fill_matrix() {
  const std::size_t w = record_.workers.size();
  const auto& workers = directed_.workers;
  record_.cosines.assign(pairs_of(w), NAN);
  const auto raw = pair_cosines(directed_);
  std::size_t at = 0;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    for (std::size_t j = i + 1; j < workers.size(); ++j, ++at) {
      record_.cosines[pair_position(workers[i], workers[j], w)] =
          static_cast<float>(estimate_->corrected(i, j, raw[at]));
    }
  }
}

}  // namespace presum::metrics
