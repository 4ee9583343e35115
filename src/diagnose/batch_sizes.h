// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "diagnose/split.h"
#include "diagnose/step_context.h"

namespace presum::diagnose {

// Micro-batches of a step, and rows, that are others on some ranks, step after step.
class BatchSizes {
 public:
  // Says it as a token-imbalance.
  void update(const StepContext& context, SignalLog& log);

 private:
  struct Lasting {
    std::string held;  // which ranks hold what
    std::uint64_t length = 0;
    std::uint64_t first_step = 0;
  };
  bool lasts(Lasting& lasting, const Split& sizes, std::uint64_t step) const;

  Lasting micro_batches_;
  Lasting rows_;
};

}  // namespace presum::diagnose
