// SPDX-License-Identifier: Apache-2.0
// stall.
#pragma once

#include "diagnose/step_context.h"
#include "presum/stall.h"

namespace presum::diagnose {

class Stalls {
 public:
  void update(const StepContext& context, SignalLog& log) const;
  // Ranks tell where they stand.
  void beats() { beats_ = true; }
  // A stall that has begun, or is over.
  void report(const Stall& stall, SignalLog& log) const;

 private:
  bool beats_ = false;
};

}  // namespace presum::diagnose
