// SPDX-License-Identifier: Apache-2.0
// recompute-mismatch.
#pragma once

#include "diagnose/signal_log.h"
#include "diagnose/step_context.h"

namespace presum::diagnose {

// What workers found that computed one of their micro-batches once more.
class Recomputed {
 public:
  void update(const StepContext& context, SignalLog& log);

 private:
  bool once_ = false;  // some worker did
};

}  // namespace presum::diagnose
