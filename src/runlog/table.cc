// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "presum/run_log.h"
#include "runlog/reading.h"

namespace presum {
namespace {

using runlog::Statement;

RunLog::Cell cell(const Statement& row, int column) {
  switch (row.type(column)) {
    case SQLITE_INTEGER:
      return static_cast<std::int64_t>(row.integer(column));
    case SQLITE_FLOAT:
      return row.number(column);
    case SQLITE_TEXT:
      return row.text(column);
    default:
      return std::monostate{};
  }
}

}  // namespace

Status RunLog::visit_table(std::string_view table, const RowVisitor& visit) const {
  constexpr std::array<std::string_view, 3> kTables = {"steps", "workers", "groups"};
  if (std::find(kTables.begin(), kTables.end(), table) == kTables.end()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("no table {}: use steps, workers or groups", table));
  }
  std::vector<std::string> columns;
  std::vector<Cell> cells;
  return runlog::for_each_row(state_->db, fmt::format("SELECT * FROM {}", table),
                              [&](const Statement& row) {
                                cells.clear();
                                for (int c = 0; c < row.columns(); ++c) {
                                  if (static_cast<int>(columns.size()) < row.columns())
                                    columns.push_back(row.column_name(c));
                                  cells.push_back(cell(row, c));
                                }
                                visit(columns, cells);
                              });
}

}  // namespace presum
