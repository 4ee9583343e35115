// SPDX-License-Identifier: Apache-2.0
#include "metrics/reduced_gradient.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace presum::metrics {
namespace {

double sum_of(const std::vector<double>& x) { return std::accumulate(x.begin(), x.end(), 0.0); }

// W <g_i, G> of each worker; empty where one is not known.
std::vector<double> rows_of(Steps steps) {
  std::vector<double> rows;
  for (const packet::Step* step : steps) {
    if (!std::isfinite(step->mean_dot)) return {};
    rows.push_back(step->mean_dot * static_cast<double>(steps.size()));
  }
  return rows;
}

}  // namespace

ReducedGradient::ReducedGradient(Steps steps, std::span<const WorkerRecord> workers,
                                 const NormSums& norms)
    : workers_(workers) {
  const auto read = norm_that_was_read();
  if (norms.complete && !contradicted_) rows_ = rows_of(steps);
  if (!read && rows_.empty()) return;
  inferred_ = !read;
  norm_ = read ? *read : norm_of_rows(norms.workers);
  if (norms.complete && std::isfinite(norm_)) derive_cross_sum(norms);
}

// Every worker that read a norm must hold the same bits.
std::optional<double> ReducedGradient::norm_that_was_read() {
  const WorkerRecord* first = nullptr;
  for (const WorkerRecord& w : workers_) {
    if (std::isnan(w.reduced_norm) && w.reduced_fingerprint == 0) continue;
    if (first == nullptr) first = &w;
    if (w.reduced_fingerprint != first->reduced_fingerprint) contradicted_ = true;
  }
  if (first == nullptr || contradicted_) return std::nullopt;
  return first->reduced_norm;
}

// If G is the mean, the mean of <g_i, G> is |G|^2.
double ReducedGradient::norm_of_rows(double workers) const {
  return std::sqrt(std::max(0.0, sum_of(rows_))) / workers;
}

void ReducedGradient::derive_cross_sum(const NormSums& norms) {
  const double sum_norm = norms.workers * norm_;
  cross_sum_ = sum_norm * sum_norm - norms.squares;
  const bool impossible = std::abs(*cross_sum_) > norms.pair_weight() + kTolerance * norms.squares;
  if (impossible || !rows_possible(sum_norm, norms)) distrust();
}

// Whether the rows, where they are known, are those of gradients whose sum has this norm.
bool ReducedGradient::rows_possible(double sum_norm, const NormSums& norms) const {
  if (rows_.empty()) return true;
  const double squares = sum_norm * sum_norm;
  const double off = sum_of(rows_) - squares;
  if (std::abs(off) > kTolerance * std::max(squares, norms.squares)) return false;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const double bound = sum_norm + kTolerance * norms.sum;
    if (std::abs(rows_[i]) > workers_[i].grad_norm * bound) return false;
  }
  if (rows_.size() != 2) return true;
  return std::abs(row_of_others(0) - row_of_others(1)) <= kTolerance * norms.squares;
}

void ReducedGradient::distrust() {
  contradicted_ = true;
  if (inferred_) norm_ = kNaN;
  cross_sum_.reset();
  rows_.clear();
}

}  // namespace presum::metrics
