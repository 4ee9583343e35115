// SPDX-License-Identifier: Apache-2.0
// The run log's schema, described for people in docs/runlog_format.md.
#pragma once

#include "runlog/sqlite.h"

namespace presum::runlog {

inline constexpr unsigned kApplicationId = 0x70726573;  // "pres"
inline constexpr unsigned kSchemaVersion = 4;
inline constexpr const char* kFileName = "presum.db";

// A database of version n - 1 becomes one of version n by kVersion<n>; an empty one is version 0.
// The views are made anew after that.
extern const char* const kVersion1;
extern const char* const kVersion2;
extern const char* const kVersion3;
extern const char* const kVersion4;
extern const char* const kViews;

// Its `user_version`, but 3 for a run of version 2 that has the columns of 3: there were such ones.
Result<std::uint64_t> schema_version(Database& db);

}  // namespace presum::runlog
