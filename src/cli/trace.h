// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>

#include "presum/run_log.h"
#include "presum/status.h"

namespace presum::cli {

// Writes where the time of a run's steps went as a trace for Perfetto and chrome://tracing
// (docs/trace.md). Holds one step in memory at a time. Errors: kNotFound, before anything is
// written (the run has no times); those of reading the run.
Status write_trace(const RunLog& log, std::ostream& out);

}  // namespace presum::cli
