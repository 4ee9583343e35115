// SPDX-License-Identifier: Apache-2.0
// reduction-error, reduction-dtype, reduction-nondeterministic: from audits of the reduction.
#pragma once

#include "diagnose/step_context.h"

namespace presum::diagnose {

// An audit is of the sum that all workers share, whoever made it.
class Audits {
 public:
  static void update(const StepContext& context, SignalLog& log);
};

}  // namespace presum::diagnose
