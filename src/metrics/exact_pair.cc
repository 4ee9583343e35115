// SPDX-License-Identifier: Apache-2.0
#include "metrics/exact_pair.h"

#include <algorithm>
#include <cmath>

namespace presum::metrics {
namespace {

// Whether two workers' sketches, where there are any, allow this cosine.
bool sketches_allow(double cosine, const DirectedWorkers& directed) {
  if (directed.workers.size() < 2) return true;
  const double sketched = pair_cosines(directed.directions).front();
  const double slack =
      kSketchSigmas / std::sqrt(static_cast<double>(directed.directions.sketch_size));
  return std::abs(cosine - sketched) <= slack + ReducedGradient::kTolerance;
}

}  // namespace

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
