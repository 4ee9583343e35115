// SPDX-License-Identifier: Apache-2.0
// The run log's schema, described for people in docs/runlog_format.md.
#pragma once

namespace presum::runlog {

inline constexpr unsigned kApplicationId = 0x70726573;  // "pres"
inline constexpr unsigned kSchemaVersion = 1;
inline constexpr const char* kFileName = "presum.db";

extern const char* const kSchema;

}  // namespace presum::runlog
