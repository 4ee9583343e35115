// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "presum/step_record.h"

namespace presum::report {

// Steps in the order of RunLog::steps(), cut where segment, module or shard change.
std::vector<std::span<const StepRecord>> cut(std::span<const StepRecord> steps);

}  // namespace presum::report
