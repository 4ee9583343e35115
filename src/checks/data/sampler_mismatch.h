// SPDX-License-Identifier: Apache-2.0
// sampler-mismatch.
#pragma once

#include <cstddef>
#include <string>

#include "checks/engine/step_context.h"

namespace presum::checks {

// The remedy if some rank's sampler does not split the data; empty if all do.
std::string undivided_remedy(const StepRecord& record);
// The signal for ranks that share their data in groups of `each`.
Signal shared_in_groups(Check check, const StepContext& context, std::size_t each);

}  // namespace presum::checks
