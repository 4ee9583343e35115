// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "presum/run_log.h"
#include "report/json.h"

namespace presum::report {

// A bounded number of a run's stalls, harmless ones last, and their total number. Each stall lists
// where its ranks were, first the ranks that kept others waiting.
Json stalls_json(std::span<const StallRecord> stalls);

}  // namespace presum::report
