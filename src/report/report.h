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

// The page without data and policy: it fetches "data", what page_data returns for one run, from
// beside it, again and again. `nonce`: base64 characters, that the policy of its HTTP headers
// allows.
std::string live_page(const std::string& nonce);

}  // namespace presum::report
