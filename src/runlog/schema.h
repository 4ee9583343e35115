// SPDX-License-Identifier: Apache-2.0
// The run log's schema, described for people in docs/runlog_format.md.
#pragma once

namespace presum::runlog {

inline constexpr unsigned kApplicationId = 0x70726573;  // "pres"
inline constexpr unsigned kSchemaVersion = 4;
inline constexpr const char* kFileName = "presum.db";

// Statements that make the tables, and the views on them.
extern const char* const kTables;
extern const char* const kViews;

}  // namespace presum::runlog
