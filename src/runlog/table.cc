// SPDX-License-Identifier: Apache-2.0
// Views as rows, for people and other programs.
#include <fmt/format.h>

#include "base/try.h"
#include "presum/run_log.h"
#include "runlog/run_log_state.h"
#include "runlog/schema.h"

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

Status RunLog::visit_table(std::string_view name, const RowVisitor& visit) const {
  PRESUM_ASSIGN(const runlog::View* view, runlog::named_view(name));
  PRESUM_ASSIGN(auto rows, state_->db.prepare(fmt::format("SELECT * FROM {}", name)));
  std::vector<std::string> columns;
  for (const runlog::ViewColumn& c : view->columns) columns.push_back(c.name);
  visit(columns, {});
  std::vector<Cell> cells;
  while (true) {
    PRESUM_ASSIGN(const auto row, rows.next());
    if (!row) return {};
    cells.clear();
    for (int c = 0; c < rows.columns(); ++c) cells.push_back(cell(rows, c));
    visit(columns, cells);
  }
}

}  // namespace presum
