// SPDX-License-Identifier: Apache-2.0
#include "runlog/schema.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "runlog/tables.h"

namespace presum::runlog {
namespace {

constexpr const char* kViewOrder = "s.segment, s.model_index, s.dp_group, s.step";
constexpr const char* kSameModel =
    "{0}.segment = s.segment AND {0}.model_index = s.model_index AND {0}.dp_group = s.dp_group";

template <class Record>
std::string create(const Table<Record>& table) {
  std::string columns;
  for (const Column<Record>& c : table.columns) {
    columns +=
        fmt::format("{}\"{}\" {}{}", columns.empty() ? "" : ", ", c.name,
                    kTypeNames[static_cast<std::size_t>(c.type)], c.nullable ? "" : " NOT NULL");
  }
  return fmt::format("CREATE TABLE {} ({}{};\n", table.name, columns, table.key);
}

// The expression that the view shows for a column: names instead of codes, fingerprints in
// hexadecimal.
std::string expression(const ViewColumn& c) {
  std::string shown = c.source;
  if (c.shown == Display::kHex) shown = fmt::format("printf('%016x', {})", c.source);
  if (!c.names.empty()) {
    shown = fmt::format("CASE {}", c.source);
    for (std::size_t i = 0; i + 1 < c.names.size(); ++i) {
      shown += fmt::format(" WHEN {} THEN '{}'", i, c.names[i]);
    }
    shown += fmt::format(" ELSE '{}' END", c.names.back());
  }
  if (c.nullable && shown != c.source) {
    shown = fmt::format("CASE WHEN {} IS NULL THEN NULL ELSE {} END", c.source, shown);
  }
  return fmt::format("{} AS \"{}\"", shown, c.name);
}

std::string create(const View& view) {
  std::vector<std::string> columns;
  for (const ViewColumn& c : view.columns) columns.push_back(expression(c));
  return fmt::format("CREATE VIEW {} AS SELECT {} FROM {} ORDER BY {};\n", view.name,
                     fmt::join(columns, ", "), view.from, view.order);
}

ViewColumn view_column(const ColumnShape& c, std::string_view table) {
  return {c, fmt::format("{}.\"{}\"", table, c.name)};
}

template <class Record>
std::vector<ViewColumn> shown_columns(const Table<Record>& table, std::string_view as) {
  std::vector<ViewColumn> out;
  for (const Column<Record>& c : table.columns) {
    if (c.shown != Display::kHidden && c.type != Type::kBlob) out.push_back(view_column(c, as));
  }
  return out;
}

std::vector<ViewColumn> operator+(std::vector<ViewColumn> a, const std::vector<ViewColumn>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// A table's column under another name; nullable if it comes from an outer join.
template <class Record>
ViewColumn one_column(const Table<Record>& table, std::string_view as, std::string_view column,
                      const char* name, std::string_view unknown) {
  const auto found = std::ranges::find(table.columns, column, &Column<Record>::name);
  ViewColumn out = view_column(*found, as);
  out.name = name;
  out.nullable = !unknown.empty();
  out.text.unknown = unknown;
  return out;
}

std::vector<ViewColumn> step_key() {
  auto all = shown_columns(kStepTable, "s");
  constexpr std::size_t kKeyColumns = 4;
  all.resize(kKeyColumns);
  return all;
}

View workers_view() {
  auto columns = step_key() + shown_columns(kWorkerStepTable, "w");
  const auto after = std::ranges::find(columns, std::string_view("replica"), &ViewColumn::name) + 1;
  columns.insert(after, one_column(kWorkerTable, "k", "host", "host", "it never said hello"));
  return {"workers", "One row per step and rank.", std::move(columns),
          fmt::format("step s JOIN worker_step w ON w.step_id = s.id LEFT JOIN worker k ON {} AND "
                      "k.replica = w.replica",
                      fmt::format(fmt::runtime(kSameModel), "k")),
          fmt::format("{}, w.replica", kViewOrder)};
}

View groups_view() {
  constexpr const char* kUnknown = "no rank said hello";
  return {
      "groups", "One row a step and group (layer).",
      step_key() +
          std::vector<ViewColumn>{one_column(kGroupTable, "n", "name", "group", kUnknown),
                                  one_column(kGroupTable, "n", "elements", "elements", kUnknown)} +
          shown_columns(kGroupStepTable, "g"),
      fmt::format("step s JOIN group_step g ON g.step_id = s.id LEFT JOIN group_name n ON {} "
                  "AND n.id = g.group_id",
                  fmt::format(fmt::runtime(kSameModel), "n")),
      fmt::format("{}, n.name", kViewOrder)};
}

std::vector<View> make_views() {
  return {
      {"segments", "One row each time that the run was begun or continued.",
       shown_columns(kSegmentTable, "t"), "segment t", "segment"},
      {"steps", "One row per step (and model): the metrics over all ranks.",
       shown_columns(kStepTable, "s"), "step s", kViewOrder},
      workers_view(),
      groups_view(),
      {"missing", "One row per step and rank that is missing from it.",
       step_key() + shown_columns(kMissingTable, "m"),
       "step s JOIN missing_worker m ON m.step_id = s.id",
       fmt::format("{}, m.replica", kViewOrder)},
      {"facts", "What each rank said about itself.", shown_columns(kFactTable, "t"), "fact t",
       "segment, model_index, rank, key"},
      {"findings", "What is wrong, worst first in each segment, model and data-parallel group.",
       shown_columns(kFindingTable, "t"), "finding t",
       "t.segment, t.model_index, t.dp_group, t.severity DESC, t.first_step, "
       "t.id"},
      {"checks", "Every check of every model.", shown_columns(kCheckTable, "t"), "check_state t",
       "t.segment, t.model_index, t.dp_group, t.position"},
      {"audits", "One row an audit of the reduction.", shown_columns(kAuditTable, "t"), "audit t",
       "t.segment, t.model_index, t.dp_group, t.step, t.replica"},
      {"stalls", "Stalls of the job.", shown_columns(kStallTable, "t"), "stall t",
       "t.segment, t.number"},
      {"stalled_ranks", "One row a stall and rank: where it was.",
       shown_columns(kStalledRankTable, "t"), "stalled_rank t", "t.segment, t.number, t.rank"},
      {"notes", "What went wrong with the collection itself.", shown_columns(kNoteTable, "t"),
       "note t", "t.rowid"},
  };
}

}  // namespace

std::span<const View> views() {
  static const std::vector<View> all = make_views();
  return all;
}

Result<const View*> named_view(std::string_view name) {
  const auto found = std::ranges::find(views(), name, &View::name);
  if (found != views().end()) return &*found;
  std::vector<std::string_view> names;
  for (const View& view : views()) names.push_back(view.name);
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("no table {}: use one of {}", name, fmt::join(names, ", ")));
}

const std::string& schema() {
  static const std::string sql = [] {
    std::string out;
    each_table([&](const auto& table) { out += create(table); });
    for (const View& view : views()) out += create(view);
    return out;
  }();
  return sql;
}

}  // namespace presum::runlog
