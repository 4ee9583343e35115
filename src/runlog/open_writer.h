// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "base/clock.h"
#include "presum/status.h"
#include "runlog/writer.h"

namespace presum::runlog {

// A writer as it suits the folder's file system, with the project's salt. Creates the folder.
// Errors: those of Writer::open.
Result<Writer> open_writer(const std::filesystem::path& run, const MonotonicClock& clock);

}  // namespace presum::runlog
