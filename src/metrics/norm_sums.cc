// SPDX-License-Identifier: Apache-2.0
#include "metrics/norm_sums.h"

#include <cmath>

namespace presum::metrics {

NormSums sum_norms(const StepRecord& record) {
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
