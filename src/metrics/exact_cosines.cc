// SPDX-License-Identifier: Apache-2.0
#include "metrics/exact_cosines.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/pairs.h"

namespace presum::metrics {
namespace {

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
bool fits(const ReducedGradient& reduced, const Gram& gram, const NormSums& norms) {
  constexpr double kTolerance = ReducedGradient::kTolerance;
  const double cross = gram.cross_sum();
  const double slack = kTolerance * std::max(norms.squares, norms.squares + cross);
  return std::abs(*reduced.cross_sum() - cross) <= slack;
}

// Whether two workers' sketches, where there are any, allow this cosine.
bool sketches_allow(double cosine, const DirectedWorkers& directed) {
  if (directed.workers.size() < 2) return true;
  const double sketched = pair_cosines(directed.directions).front();
  const double slack =
      kSketchSigmas / std::sqrt(static_cast<double>(directed.directions.sketch_size));
  return std::abs(cosine - sketched) <= slack + ReducedGradient::kTolerance;
}

}  // namespace

bool fill_gram_cosines(const Gram& gram, bool pairwise, const NormSums& norms,
                       ReducedGradient& reduced, StepRecord& record) {
  const auto directed = with_direction(record.workers);
  if (directed.size() < 2) return false;
  fill_cosines(gram, directed, pairwise, record);
  if (!norms.complete) return true;
  if (reduced.cross_sum() && !fits(reduced, gram, norms)) reduced.distrust();
  const double squared = std::max(0.0, norms.squares + gram.cross_sum());
  record.mean_norm = std::sqrt(squared) / norms.workers;
  record.mean_norm_error = 0;
  return true;
}

bool fill_exact_pair(Steps steps, const DirectedWorkers& directed, bool pairwise,
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
