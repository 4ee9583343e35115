// SPDX-License-Identifier: Apache-2.0
#include "metrics/gram.h"

#include <algorithm>
#include <cmath>

namespace presum::metrics {

std::optional<Gram> Gram::sum(std::span<const packet::Step* const> steps,
                              std::span<const WorkerRecord> records, std::size_t expected) {
  const std::size_t size = packet::gram_size(expected);
  const bool whole =
      size > 0 && steps.size() == expected &&
      std::ranges::all_of(steps, [&](const packet::Step* s) { return s->gram.size() == size; });
  if (!whole) return std::nullopt;
  Gram gram(expected);
  for (const packet::Step* step : steps) gram.add(step->gram);
  if (!gram.fits(records)) return std::nullopt;
  return gram;
}

void Gram::add(std::span<const double> share) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < workers_; ++i) {
    for (std::size_t j = i; j < workers_; ++j, ++at) {
      products_[i * workers_ + j] += share[at];
      if (j != i) products_[j * workers_ + i] += share[at];
    }
  }
}

// The diagonal holds the squared norms, and no product exceeds that of its norms. NaN does neither.
bool Gram::fits(std::span<const WorkerRecord> records) const {
  constexpr double kTolerance = 1e-3;  // gradients may be summed up in fewer bits than norms
  for (std::size_t i = 0; i < workers_; ++i) {
    const double norm = records[i].grad_norm;
    if (!std::isfinite(norm)) continue;
    const double square = norm * norm;
    if (!(std::abs(product(i, i) - square) <= kTolerance * square)) return false;
    for (std::size_t j = 0; j < i; ++j) {
      const double bound = (1 + kTolerance) * norm * records[j].grad_norm;
      if (std::isfinite(bound) && !(std::abs(product(i, j)) <= bound)) return false;
    }
  }
  return true;
}

// By the matrix's own diagonal: equal gradients have the cosine 1 however roughly they are summed.
double Gram::cosine(std::size_t i, std::size_t j) const {
  return std::clamp(product(i, j) / (std::sqrt(product(i, i)) * std::sqrt(product(j, j))), -1.0,
                    1.0);
}

double Gram::cross_sum() const {
  double sum = 0;
  for (std::size_t i = 0; i < workers_; ++i) {
    double row = 0;
    for (std::size_t j = 0; j < workers_; ++j) row += j == i ? 0 : product(i, j);
    sum += row;
  }
  return sum;
}

}  // namespace presum::metrics
