// SPDX-License-Identifier: Apache-2.0
// Sums over the norms n_i of the workers' own gradients.
#pragma once

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
NormSums sum_norms(const StepRecord& record);

}  // namespace presum::metrics
