// SPDX-License-Identifier: Apache-2.0
// The HTML report. Pure functions of what the run logs hold; thread-safety: that of the logs.
#pragma once

#include <span>
#include <string>

#include "presum/run_log.h"
#include "presum/status.h"
#include "report/json.h"

namespace presum::report {

// Everything that the page draws, of one run or several. Its size is bounded whatever the runs'
// length: see axis.h. Errors: those of reading the runs.
Result<Json> page_data(std::span<const RunLog> runs);

// One HTML page with everything it needs; a browser that opens it loads nothing else. Runs without
// a step, or with one worker, yield a page that says so. Errors: those of reading the runs.
// `comparison` of two runs, as `presum compare --format json` writes it, is drawn above them.
Result<std::string> page(std::span<const RunLog> runs, const Json& comparison = {});

}  // namespace presum::report
