// SPDX-License-Identifier: Apache-2.0
// no-reduction, reduced-gradient-mismatch, reduction-scale.
#pragma once

#include <cstdint>
#include <string>

#include "diagnose/layers_reduced.h"
#include "diagnose/step_context.h"

namespace presum::diagnose {

// What such a multiple of the mean comes from; empty for a factor without a name.
std::string factor_name(double factor, double workers);

class Reduction {
 public:
  void update(const StepContext& context, SignalLog& log);

 private:
  void watch_unreduced_steps(const StepContext& context, SignalLog& log);
  void compare(const StepContext& context, SignalLog& log);
  void not_reduced(const StepContext& context, std::size_t own, const Split& held,
                   SignalLog& log) const;
  void mismatch(const StepContext& context, const Split& held, SignalLog& log) const;
  void check_finite(const StepContext& context, SignalLog& log) const;
  void check_scale(const StepContext& context, SignalLog& log);

  LayersReduced layers_;
  PerWorker<std::uint64_t> unreduced_;  // steps so far
  double last_ratio_ = 0;               // of a reduced norm that was off; 0: it was not
};

}  // namespace presum::diagnose
