// SPDX-License-Identifier: Apache-2.0
// Checks a file before its contents are used: it may come from an untrusted source.
#pragma once

#include <filesystem>

#include "presum/status.h"
#include "runlog/sqlite.h"

namespace presum::runlog {

// Checks that the file, and the files that SQLite looks for next to it, are regular files: reading
// a pipe or a device could block forever. Also checks that the file ends with a whole page, unless
// a journal beside it may complete it. Error: kCorrupt. REQUIRES: the file exists.
Status check_file(const std::filesystem::path& file);
// The same for the files next to it only; they may be absent.
Status check_side_files(const std::filesystem::path& file);

// Checks that its journal may be rolled back: the file is a presum run log, and the journal names
// no other file, which SQLite would delete. Error: kCorrupt.
Status check_journal(const std::filesystem::path& file);

// Checks that the file is a run log with this schema. Errors: kCorrupt (not a run log),
// kUnsupported (another version).
Status check_identity(Database& db, const std::filesystem::path& file);

// Checks that its tables are tables with the known columns, none of them computed, and that its
// views are presum's: a view in place of a table could be an endless query. Error: kCorrupt.
Status check_shape(Database& db, const std::filesystem::path& file);

}  // namespace presum::runlog
