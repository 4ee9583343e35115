// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "presum/run_log.h"
#include "report/json.h"

namespace presum::report {

// A bounded number of a run's stalls, the harmless ones last, and how many there are; of each the
// places at which ranks stood, those that kept others waiting first.
Json stalls_json(std::span<const StallRecord> stalls);

}  // namespace presum::report
