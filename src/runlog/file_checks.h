// SPDX-License-Identifier: Apache-2.0
// Checks of a file before its contents are used: it may come from a stranger.
#pragma once

#include <filesystem>

#include "presum/status.h"
#include "runlog/sqlite.h"

namespace presum::runlog {

// The file, and those that SQLite looks for beside it, are regular files: reading a pipe or a
// device could block for ever. Error: kCorrupt. REQUIRES: it exists.
Status check_file(const std::filesystem::path& file);
// The same of the files beside it only; they may be absent.
Status check_side_files(const std::filesystem::path& file);

// Its journal may be rolled back: the file is a presum run log, and the journal names no other
// file, which SQLite would delete. Error: kCorrupt.
Status check_journal(const std::filesystem::path& file);

// The file is a run log of this schema. Errors: kCorrupt (it is not), kUnsupported (other version).
Status check_identity(Database& db, const std::filesystem::path& file);

// Its tables are tables with the known columns, none of them computed, and its views are ours: a
// view in the place of a table could be a query without end. Error: kCorrupt.
Status check_shape(Database& db, const std::filesystem::path& file);

}  // namespace presum::runlog
