// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "presum/run_log.h"
#include "presum/status.h"
#include "report/json.h"

namespace presum::report {

// Everything that the page draws, of one run or several. Its size is bounded whatever the runs'
// length: see axis.h. Errors: those of reading the runs.
Result<Json> page_data(std::span<const RunLog> runs);

}  // namespace presum::report
