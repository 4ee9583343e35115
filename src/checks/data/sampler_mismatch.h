// SPDX-License-Identifier: Apache-2.0
// sampler-mismatch.
#pragma once

#include <cstddef>
#include <string>

#include "checks/engine/step_context.h"

namespace presum::checks {

// What to do where some worker's sampler is not one that splits the data; empty where none is so.
std::string undivided_remedy(const StepRecord& record);
// What is said where ranks share their data in groups of `each`.
Signal shared_in_groups(Check check, const StepContext& context, std::size_t each);

}  // namespace presum::checks
