// SPDX-License-Identifier: Apache-2.0
// no-reduction, reduced-gradient-mismatch and reduction-scale for single layers.
#pragma once

#include <string>

#include "checks/engine/step_context.h"

namespace presum::checks {

// The names of the layers whose reduced gradients differ between ranks; empty if there are none.
std::string layers_apart(const StepContext& context);
// Whether some layers equal the mean and others do not: the norm of the whole is then no factor.
bool layers_differ(const StepContext& context);
// The largest share of a norm that gradient compression removes.
inline constexpr double kScaleTolerance = 0.1;
// Whether a ratio of norms equals the factor, within a relative tolerance.
bool is_multiple(double ratio, double factor, double within = kScaleTolerance);
// The origin of such a multiple of the mean; empty for an unnamed factor.
std::string factor_name(double factor, double workers, double within = kScaleTolerance);

}  // namespace presum::checks
