// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "diagnose/step_context.h"

namespace presum::diagnose {

// How many target tokens each worker has beside the others, over the steps in which all counts are
// known.
class TokenShares {
 public:
  void see(const StepRecord& record);
  // The geometric mean of a worker's count over the others', where it is at least 1.2 (or at most
  // its inverse) and on the same side in four of five steps, ten or more; else none.
  std::optional<double> apart(std::uint32_t replica) const;

 private:
  struct Share {
    double log_ratio = 0;
    std::uint64_t steps = 0;
    std::uint64_t above = 0;
  };
  std::map<std::uint32_t, Share> shares_;  // by replica; at most 65,536
};

}  // namespace presum::diagnose
