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
// Whether a norm's ratio is the factor, but for what a compression of gradients does.
bool is_multiple(double ratio, double factor);
// What such a multiple of the mean comes from; empty for a factor without a name.
std::string factor_name(double factor, double workers);

}  // namespace presum::checks
