// SPDX-License-Identifier: Apache-2.0
// recompute-mismatch.
#pragma once

#include <cstdint>
#include <map>

#include "diagnose/step_context.h"

namespace presum::diagnose {

// What workers found that computed one of their micro-batches once more.
class Recomputed {
 public:
  void update(const StepContext& context, SignalLog& log);

 private:
  struct Steadiness {
    std::uint64_t equal = 0;  // micro-batches that gave the same again
    std::uint64_t others = 0;
  };
  std::map<std::uint32_t, Steadiness> steadiness_;  // by replica
  bool once_ = false;                               // some worker did
};

}  // namespace presum::diagnose
