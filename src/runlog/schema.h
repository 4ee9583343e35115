// SPDX-License-Identifier: Apache-2.0
// The run log's schema, generated from the columns in runlog/tables.h.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runlog/column.h"

namespace presum::runlog {

inline constexpr unsigned kApplicationId = 0x70726573;  // "pres"
inline constexpr unsigned kSchemaVersion = 16;
inline constexpr const char* kFileName = "presum.db";

// A column of a view and its source.
struct ViewColumn : ColumnShape {
  std::string source;  // the table's column, such as w.loss
};

struct View {
  std::string_view name;
  std::string_view meaning;
  std::vector<ViewColumn> columns;
  std::string from;   // tables
  std::string order;  // columns to sort by
};

// All views. Static lifetime. Safe from any thread.
std::span<const View> views();
// Static lifetime. Error: kInvalidArgument (no view has this name).
Result<const View*> named_view(std::string_view name);
// The statements that create the tables and the views.
const std::string& schema();

}  // namespace presum::runlog
