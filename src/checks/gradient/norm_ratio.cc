// SPDX-License-Identifier: Apache-2.0
#include "checks/gradient/norm_ratio.h"

#include <cmath>

namespace presum::checks {

bool near(double a, double b, double within) { return std::abs(a - b) <= within * std::abs(b); }

bool is_power_of_two(double ratio) {
  return ratio >= 8 && near(std::log2(ratio), std::round(std::log2(ratio)), 1e-3);
}

std::string usual_cause(double ratio, double type, double workers, bool scaled) {
  if (scaled && is_power_of_two(ratio)) {
    return "it was taken before the loss scaler's factor was divided out";
  }
  if (near(ratio, workers, kTrue)) return "it is the norm of the sum, not of the mean";
  if (near(ratio, 1 / workers, kTrue)) return "it was divided by the world size";
  if (near(ratio, std::pow(workers, 1 / type), kTrue))
    return "every rank's norm was added though all are equal";
  if (ratio > 1) return "parameters were counted more than once, or norms of parts were added";
  return "it is the norm of a part, or a mean of such norms";
}

}  // namespace presum::checks
