// SPDX-License-Identifier: Apache-2.0
// The HTML report. Pure functions of what the run logs hold; thread-safety: that of the logs.
#pragma once

#include <span>
#include <string>

#include "presum/run_log.h"
#include "presum/status.h"

namespace presum::report {

// One HTML page with everything it needs; a browser that opens it loads nothing else. Runs without
// a step, or with one worker, yield a page that says so. Errors: those of reading the runs.
Result<std::string> page(std::span<const RunLog> runs);

}  // namespace presum::report
