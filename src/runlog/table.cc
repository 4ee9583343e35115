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

struct Table {
  std::string_view name;
  const char* sql;
  std::uint64_t since;  // version of the schema
};

constexpr std::array<Table, 5> kTables = {{
    {"steps", "SELECT * FROM steps", 1},
    {"workers", "SELECT * FROM workers", 1},
    {"groups", "SELECT * FROM groups", 1},
    {"findings", "SELECT * FROM findings", 2},
    {"checks",
     "SELECT segment, module, shard, check_id, CASE state WHEN 0 THEN 'found' WHEN 1 THEN 'passed' "
     "WHEN 2 THEN 'not-triggered' ELSE 'not-possible' END AS state, reason FROM check_state "
     "ORDER BY segment, module, shard, position",
     2},
}};

Result<const Table*> find_table(std::string_view name, std::uint64_t version) {
  const auto found = std::ranges::find(kTables, name, &Table::name);
  if (found == kTables.end()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("no table {}: use steps, workers, groups, findings or checks", name));
  }
  if (version < found->since) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("no table {}: a presum without findings wrote the run", name));
  }
  return &*found;
}

}  // namespace

Status RunLog::visit_table(std::string_view name, const RowVisitor& visit) const {
  const auto table = find_table(name, state_->version);
  if (!table) return tl::unexpected(table.error());
  auto rows = state_->db.prepare((*table)->sql);
  if (!rows) return tl::unexpected(rows.error());
  std::vector<std::string> columns;
  columns.reserve(static_cast<std::size_t>(rows->columns()));
  for (int c = 0; c < rows->columns(); ++c) columns.push_back(rows->column_name(c));
  visit(columns, {});
  std::vector<Cell> cells;
  while (true) {
    const auto row = rows->next();
    if (!row) return tl::unexpected(row.error());
    if (!*row) return {};
    cells.clear();
    for (int c = 0; c < rows->columns(); ++c) cells.push_back(cell(*rows, c));
    visit(columns, cells);
  }
}

}  // namespace presum
