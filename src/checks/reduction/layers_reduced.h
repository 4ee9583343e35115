// SPDX-License-Identifier: Apache-2.0
// no-reduction, reduced-gradient-mismatch, reduction-scale, of some layers.
#pragma once

#include <string>

#include "checks/engine/step_context.h"

namespace presum::checks {

// Layers of which the workers hold different reduced gradients, as names; empty where there is
// none.
std::string layers_apart(const StepContext& context);
// Whether some layers came out as the mean and others did not: the norm of all is no factor then.
bool layers_differ(const StepContext& context);
// What a compression of gradients takes from a norm, at most.
inline constexpr double kScaleTolerance = 0.1;
// Whether a norm's ratio is the factor, within so much of it.
bool is_multiple(double ratio, double factor, double within = kScaleTolerance);
// What such a multiple of the mean comes from; empty for a factor without a name.
std::string factor_name(double factor, double workers, double within = kScaleTolerance);

}  // namespace presum::checks
