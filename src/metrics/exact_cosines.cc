// SPDX-License-Identifier: Apache-2.0
#include "metrics/exact_cosines.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "base/pairs.h"

namespace presum::metrics {
namespace {

// The exact dot products of all pairs of ranks, by position in the list of ranks. Do not use the
// entries of a rank whose norm is not finite.
class Gram {
 public:
  // Adds the shares of the ranks. Empty if a share is missing or was made for another number of
  // ranks, or if the sum contradicts the ranks' norms.
  static std::optional<Gram> sum(Steps steps, const StepRecord& record) {
    const std::size_t size = packet::gram_size(record.workers_expected);
    const bool whole =
        size > 0 && steps.size() == record.workers_expected &&
        std::ranges::all_of(steps, [&](const packet::Step* s) { return s->gram.size() == size; });
    if (!whole) return std::nullopt;
    Gram gram(record.workers_expected);
    for (const packet::Step* step : steps) gram.add(step->gram);
    return gram.fits(record.workers) ? std::optional(std::move(gram)) : std::nullopt;
  }

  // From -1 to 1. REQUIRES: both gradients are finite and non-zero. Uses the matrix's own diagonal,
  // so that equal gradients have the cosine 1 regardless of rounding in the sums.
  double cosine(std::size_t i, std::size_t j) const {
    return std::clamp(product(i, j) / (std::sqrt(product(i, i)) * std::sqrt(product(j, j))), -1.0,
                      1.0);
  }

  // Sum over i != j of <g_i, g_j>; NaN if one of them is NaN.
  double cross_sum() const {
    double sum = 0;
    for (std::size_t i = 0; i < workers_; ++i) {
      double row = 0;
      for (std::size_t j = 0; j < workers_; ++j) row += j == i ? 0 : product(i, j);
      sum += row;
    }
    return sum;
  }

 private:
  explicit Gram(std::size_t workers) : workers_(workers), products_(workers * workers) {}

  double product(std::size_t i, std::size_t j) const { return products_[i * workers_ + j]; }

  void add(std::span<const double> share) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < workers_; ++i) {
      for (std::size_t j = i; j < workers_; ++j, ++at) {
        products_[i * workers_ + j] += share[at];
        if (j != i) products_[j * workers_ + i] += share[at];
      }
    }
  }

  // Returns whether the diagonal holds the squared norms and no product exceeds the product of its
  // norms. NaN passes neither test.
  bool fits(std::span<const WorkerRecord> records) const {
    constexpr double kTolerance = 1e-3;  // gradients may be multiplied in fewer bits than norms
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

  std::size_t workers_;
  std::vector<double> products_;
};

std::vector<std::size_t> with_direction(const std::vector<WorkerRecord>& workers) {
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    const double norm = workers[i].grad_norm;
    if (std::isfinite(norm) && norm > 0) out.push_back(i);
  }
  return out;
}

void fill_cosines(const Gram& gram, const std::vector<std::size_t>& directed, bool pairwise,
                  StepRecord& record) {
  const std::size_t w = record.workers.size();
  if (pairwise) record.cosines.assign(pairs_of(w), NAN);
  std::vector<double> row(w);
  for (const std::size_t i : directed) {
    for (const std::size_t j : directed) {
      if (j == i) continue;
      const double cosine = gram.cosine(i, j);
      row[i] += cosine;
      if (pairwise && i < j) record.cosines[pair_position(i, j, w)] = static_cast<float>(cosine);
    }
  }
  const auto count = static_cast<double>(directed.size());
  for (const std::size_t i : directed) {
    record.workers[i].cosine_to_others = row[i] / (count - 1);
  }
  const double mean = std::accumulate(row.begin(), row.end(), 0.0) / (count * (count - 1));
  record.cosine_mean = record.cosine_low = record.cosine_high = mean;
  record.cosine_source = CosineSource::kGram;
}

// REQUIRES: reduced.cross_sum().
bool fits(const ReducedGradient& reduced, double cross, const NormSums& norms) {
  constexpr double kTolerance = ReducedGradient::kTolerance;
  const double slack = kTolerance * std::max(norms.squares, norms.squares + cross);
  return std::abs(*reduced.cross_sum() - cross) <= slack;
}

// Returns whether the sketches of two ranks, if there are any, are compatible with this cosine.
bool sketches_allow(double cosine, const Directions& directed) {
  if (directed.workers.size() < 2) return true;
  const double sketched = pair_cosines(directed).front();
  const double slack = kSketchSigmas / std::sqrt(static_cast<double>(directed.sketch_size));
  return std::abs(cosine - sketched) <= slack + ReducedGradient::kTolerance;
}

}  // namespace

std::optional<double> fill_gram_cosines(Steps steps, bool pairwise, const NormSums& norms,
                                        ReducedGradient& reduced, StepRecord& record) {
  const auto gram = Gram::sum(steps, record);
  const auto directed = with_direction(record.workers);
  if (!gram || directed.size() < 2) return std::nullopt;
  fill_cosines(*gram, directed, pairwise, record);
  const double cross = gram->cross_sum();
  if (!norms.complete) return cross;
  if (reduced.cross_sum() && !fits(reduced, cross, norms)) reduced.distrust();
  record.mean_norm = std::sqrt(std::max(0.0, norms.squares + cross)) / norms.workers;
  record.mean_norm_error = 0;
  return cross;
}

bool fill_exact_pair(Steps steps, const Directions& directed, bool pairwise,
                     ReducedGradient& reduced, StepRecord& record) {
  if (record.workers.size() != 2 || !reduced.cross_sum()) return false;
  const double cross = *reduced.cross_sum();
  const double product = record.workers[0].grad_norm * record.workers[1].grad_norm;
  if (product == 0) return false;
  // The rounding of a 16-bit reduction stays within the tolerance.
  const bool possible = std::abs(cross) <= 2 * product * (1 + ReducedGradient::kTolerance);
  if (!possible || !sketches_allow(cross / (2 * product), directed)) {
    reduced.distrust();
    return false;
  }
  const double cosine = std::clamp(cross / (2 * product), -1.0, 1.0);
  record.cosine_mean = record.cosine_low = record.cosine_high = cosine;
  record.cosine_source = CosineSource::kExact;
  for (WorkerRecord& w : record.workers) w.cosine_to_others = cosine;
  if (pairwise) record.cosines = {static_cast<float>(cosine)};
  record.sketch_size = static_cast<std::uint32_t>(steps[0]->sketch.size());
  return true;
}

}  // namespace presum::metrics
