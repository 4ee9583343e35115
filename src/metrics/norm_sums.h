// SPDX-License-Identifier: Apache-2.0
// Sums over the norms n_i of the workers' own gradients.
#pragma once

#include <cmath>

#include "presum/step_record.h"

namespace presum::metrics {

struct NormSums {
  double workers = 0;  // how many
  double sum = 0;
  double squares = 0;
  bool complete = false;  // no worker is missing, and every norm is finite

  // Sum over i != j of n_i n_j, which no sum over i != j of <g_i, g_j> exceeds.
  double pair_weight() const { return sum * sum - squares; }
};

// Of the record's workers. A norm that is not finite makes the sums so.
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
