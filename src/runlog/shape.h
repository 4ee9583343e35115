// SPDX-License-Identifier: Apache-2.0
// What a file must be before anything in it is believed: it may come from a stranger.
#pragma once

#include <filesystem>

#include "presum/status.h"
#include "runlog/sqlite.h"

namespace presum::runlog {

// A regular file: a pipe or a device could be waited for without end. Error: kCorrupt, kNotFound.
Status check_file(const std::filesystem::path& file);

// A run log of this schema. Errors: kCorrupt (something else), kUnsupported (of another version).
Status check_identity(Database& db, const std::filesystem::path& file);

// Its tables are tables with the known columns, none of them computed, and its views are ours: a
// view in the place of a table could be a query without end. Error: kCorrupt.
Status check_shape(Database& db, const std::filesystem::path& file);

}  // namespace presum::runlog
