// SPDX-License-Identifier: Apache-2.0
// The HTML report. Pure functions of the run logs' contents; thread-safety: that of the logs.
#pragma once

#include <span>
#include <string>

#include "presum/run_log.h"
#include "presum/status.h"
#include "report/json.h"

namespace presum::report {

// Everything that the page draws, for one or more runs. The size is bounded regardless of the
// length of the runs: see axis.h. Errors: those of reading the runs.
Result<Json> page_data(std::span<const RunLog> runs);

// A self-contained HTML page; a browser that opens it loads nothing else. For a run without steps
// or with one rank, the page says so. `comparison`: a comparison of two runs in the format of
// `presum compare --format json`, drawn above them. Errors: those of reading the runs.
Result<std::string> page(std::span<const RunLog> runs, const Json& comparison = {});

}  // namespace presum::report
