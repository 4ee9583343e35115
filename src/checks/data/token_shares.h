// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <tuple>

#include "checks/engine/evidence.h"
#include "checks/engine/step_context.h"

namespace presum::checks {

// A rank that stands out and has different token counts than the others.
struct OtherTokens {
  double tokens_ratio = 1;
  std::optional<std::uint32_t> of_rank;  // only with two ranks
  std::optional<std::uint32_t> beside_rank;

  static constexpr std::tuple kFields{field("tokens_ratio", &OtherTokens::tokens_ratio),
                                      field("of_rank", &OtherTokens::of_rank),
                                      field("beside_rank", &OtherTokens::beside_rank)};
};

std::string sentence(const OtherTokens& seen, const Who& who);

// The ratio of each rank's target tokens (or another count) to the others', over the steps in which
// all counts are known.
class TokenShares {
 public:
  void see(const StepRecord& record,
           const std::function<std::uint64_t(const WorkerRecord&)>& count_of);

  // The geometric mean of the ratio of a rank's count to the others', if it is at least 1.2 (or at
  // most its inverse), and on the same side in four of five steps, over ten steps or more; else
  // none.
  std::optional<double> apart(std::uint32_t replica) const;

 private:
  struct Share {
    double log_ratio = 0;
    std::uint64_t steps = 0;
    std::uint64_t above = 0;
  };
  PerWorker<Share> shares_;
};

}  // namespace presum::checks
