// SPDX-License-Identifier: Apache-2.0
// clip-norm.
#pragma once

#include "diagnose/step_context.h"

namespace presum::diagnose {

// The norm by which workers clipped the gradients of all parameters, or that their program says:
// against that of these gradients where it was read, and between workers.
class ClipNorm {
 public:
  void update(const StepContext& context, SignalLog& log);

 private:
  void compare_workers(const StepContext& context, SignalLog& log);
  void compare_clipping(const StepContext& context, SignalLog& log);
  void compare_finite(const StepContext& context, SignalLog& log);
  static void compare_limits(const StepContext& context, SignalLog& log);
  void compare_true(const StepContext& context, SignalLog& log);
  void report_untrue(const StepContext& context, const WorkerRecord& worker, bool scaled,
                     SignalLog& log) const;

  Streak apart_;  // workers' norms differ
  Streak no_number_;
  Streak alone_;   // some clip, and others do not
  Streak untrue_;  // what the program says is not the reduced gradient's
  double ratio_ = 0;
};

}  // namespace presum::diagnose
