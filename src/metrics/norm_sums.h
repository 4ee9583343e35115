// SPDX-License-Identifier: Apache-2.0
// Sums over the norms n_i of the ranks' own gradients.
#pragma once

#include <cmath>

#include "presum/step_record.h"

namespace presum::metrics {

struct NormSums {
  double workers = 0;  // number of ranks
  double sum = 0;
  double squares = 0;
  bool complete = false;  // all ranks are there, and every norm is finite

  // Sum over i != j of n_i n_j; an upper bound for the sum over i != j of <g_i, g_j>.
  double pair_weight() const { return sum * sum - squares; }
};

// Sums over the ranks in the record. A non-finite norm makes the sums non-finite.
inline NormSums sum_norms(const StepRecord& record) {
  NormSums n;
  n.workers = static_cast<double>(record.workers.size());
  n.complete = record.workers_seen == record.workers_expected && record.workers_seen > 0;
  for (const WorkerRecord& w : record.workers) {
    n.complete = n.complete && std::isfinite(w.grad_norm);
    n.sum += w.grad_norm;
    n.squares += w.grad_norm * w.grad_norm;
  }
  return n;
}

}  // namespace presum::metrics
