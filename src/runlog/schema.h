// SPDX-License-Identifier: Apache-2.0
// The run log's schema, described for people in docs/runlog_format.md.
#pragma once

namespace presum::runlog {

inline constexpr unsigned kApplicationId = 0x70726573;  // "pres"
inline constexpr unsigned kSchemaVersion = 2;
inline constexpr const char* kFileName = "presum.db";

// A database of version n - 1 becomes one of version n by kVersion<n>; an empty one is version 0.
// The views are made anew after that.
extern const char* const kVersion1;
extern const char* const kVersion2;
extern const char* const kViews;

}  // namespace presum::runlog
