// SPDX-License-Identifier: Apache-2.0
// no-reduction, reduced-gradient-mismatch, reduction-scale, of some layers.
#pragma once

#include <cstdint>
#include <string>

#include "diagnose/step_context.h"

namespace presum::diagnose {

// Layers of which the workers hold different reduced gradients, as names; empty where there is
// none.
std::string layers_apart(const StepContext& context);

class LayersReduced {
 public:
  void update(const StepContext& context, SignalLog& log);
  // Whether some layers came out as the mean and others did not: the norm of all is no factor then.
  static bool differ(const StepContext& context);

 private:
  void kept_own(const StepContext& context, SignalLog& log) const;
  void weighed(const StepContext& context, SignalLog& log) const;
  void means_of_some(const StepContext& context, SignalLog& log) const;
  void scaled(const StepContext& context, double tolerance, SignalLog& log) const;
  void unexplained(const StepContext& context, double tolerance, SignalLog& log);

  std::uint64_t strange_ = 0;  // records in a row with layers that nothing explains
};

}  // namespace presum::diagnose
