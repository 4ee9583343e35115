// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "base/try.h"
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
};

constexpr std::array<Table, 6> kTables = {{
    {"steps", "SELECT * FROM steps"},
    {"workers", "SELECT * FROM workers"},
    {"groups", "SELECT * FROM groups"},
    {"findings", "SELECT * FROM findings"},
    {"checks",
     "SELECT segment, module, shard, check_id, CASE state WHEN 0 THEN 'found' WHEN 1 THEN 'passed' "
     "WHEN 2 THEN 'not-triggered' ELSE 'not-possible' END AS state, reason FROM check_state "
     "ORDER BY segment, module, shard, position"},
    {"audits", nullptr},  // not a query: rows are put together from fingerprints
}};

Result<const Table*> find_table(std::string_view name) {
  const auto found = std::ranges::find(kTables, name, &Table::name);
  if (found == kTables.end()) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("no table {}: use steps, workers, groups, findings, checks or audits", name));
  }
  return &*found;
}

RunLog::Cell cell(double value) {
  if (std::isnan(value)) return std::monostate{};
  return value;
}

// At most the largest integer of SQL.
RunLog::Cell cell(std::uint64_t value) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  return static_cast<std::int64_t>(std::min(value, kMost));
}

RunLog::Cell cell(const std::optional<UlpPercentiles>& ulps, std::uint64_t UlpPercentiles::*of) {
  if (!ulps) return std::monostate{};
  return cell((*ulps).*of);
}

const char* to_string(Repeat repeat) {
  if (repeat == Repeat::kNotTried) return "not-tried";
  return repeat == Repeat::kEqual ? "equal" : "different";
}

Status visit_audits(const RunLog& log, const RunLog::RowVisitor& visit) {
  PRESUM_ASSIGN(const auto audits, log.audits());
  static const std::vector<std::string> kColumns = {
      "segment",  "module",   "shard",    "step",      "replica", "gradient",    "accumulation",
      "order",    "division", "elements", "differing", "wrong",   "relative_l2", "error_max",
      "ulps_p50", "ulps_p90", "ulps_p99", "ulps_max",  "repeat"};
  visit(kColumns, {});
  for (const auto& [key, replica, a] : audits) {
    const std::vector<RunLog::Cell> cells = {cell(std::uint64_t{key.segment}),
                                             cell(std::uint64_t{key.module}),
                                             cell(std::uint64_t{key.shard}),
                                             cell(key.step),
                                             cell(std::uint64_t{replica}),
                                             to_string(a.gradient),
                                             to_string(a.accumulation),
                                             to_string(a.order),
                                             to_string(a.division),
                                             cell(a.elements),
                                             cell(a.differing),
                                             cell(a.wrong),
                                             cell(a.relative_l2),
                                             cell(a.error_max),
                                             cell(a.ulps, &UlpPercentiles::p50),
                                             cell(a.ulps, &UlpPercentiles::p90),
                                             cell(a.ulps, &UlpPercentiles::p99),
                                             cell(a.ulps, &UlpPercentiles::max),
                                             to_string(a.repeat)};
    visit(kColumns, cells);
  }
  return {};
}

}  // namespace

Status RunLog::visit_table(std::string_view name, const RowVisitor& visit) const {
  PRESUM_ASSIGN(const auto table, find_table(name));
  if ((table)->sql == nullptr) return visit_audits(*this, visit);
  PRESUM_ASSIGN(auto rows, state_->db.prepare((table)->sql));
  std::vector<std::string> columns;
  columns.reserve(static_cast<std::size_t>(rows.columns()));
  for (int c = 0; c < rows.columns(); ++c) columns.push_back(rows.column_name(c));
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
