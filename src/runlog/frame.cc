// SPDX-License-Identifier: Apache-2.0
// Views as rows, for people and other programs, and as arrays: each column becomes one vector, and
// repeated texts are stored once.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <unordered_map>
#include <utility>

#include "base/try.h"
#include "runlog/run_log_state.h"
#include "runlog/schema.h"

namespace presum {
namespace {

using runlog::Display;
using runlog::GroupStepRow;
using runlog::Statement;
using runlog::StepRow;
using runlog::Type;
using runlog::ViewColumn;
using runlog::WorkerStepRow;

using Reals = std::vector<double>;
using Integers = std::vector<std::int64_t>;
using Hashes = std::vector<std::uint64_t>;
using Small = std::vector<std::int32_t>;

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

// Clamps to 32 bits; only a damaged file has a larger value.
std::int32_t bounded(std::uint64_t value) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::int32_t>::max();
  return static_cast<std::int32_t>(std::min(value, kMost));
}

// Fills one series, one cell per row.
class SeriesReader {
 public:
  explicit SeriesReader(const ViewColumn& column) : column_(column) {
    series_.name = column.name;
    series_.is_text = is_code() || column.type == Type::kText;
    for (const char* name : column.names) series_.texts.emplace_back(name);
    const bool real = column.type == Type::kReal || column.nullable;
    if (column.shown == Display::kHex) {
      series_.values = Hashes();
    } else if (series_.is_text || (column.small && !real)) {
      series_.values = Small();
    } else if (real) {
      series_.values = Reals();
    } else {
      series_.values = Integers();
    }
  }

  void read(const Statement& row, int at) {
    if (auto* reals = std::get_if<Reals>(&series_.values)) return reals->push_back(row.number(at));
    if (auto* hashes = std::get_if<Hashes>(&series_.values)) {
      return hashes->push_back(row.integer(at));
    }
    if (auto* integers = std::get_if<Integers>(&series_.values)) {
      return integers->push_back(static_cast<std::int64_t>(row.integer(at)));
    }
    std::get<Small>(series_.values).push_back(small(row, at));
  }

  Series finish() && { return std::move(series_); }

 private:
  bool is_code() const { return !column_.names.empty(); }

  std::int32_t small(const Statement& row, int at) {
    if (!series_.is_text) return bounded(row.integer(at));
    if (row.type(at) == SQLITE_NULL) return -1;
    if (is_code()) {
      const std::uint64_t last = column_.names.size() - 1;
      return static_cast<std::int32_t>(std::min(row.integer(at), last));
    }
    const auto next = static_cast<std::int32_t>(series_.texts.size());
    const auto [known, fresh] = positions_.try_emplace(row.text(at), next);
    if (fresh) series_.texts.push_back(known->first);
    return known->second;
  }

  const ViewColumn& column_;
  Series series_;
  std::unordered_map<std::string, std::int32_t> positions_;
};

ColumnInfo info_of(const runlog::ColumnShape& c, bool as_text) {
  const char* type = as_text ? "text" : runlog::kTypeNames[static_cast<std::size_t>(c.type)];
  return {c.name, type, c.text.meaning, c.text.unit, c.text.unknown};
}

// One row per step, group and rank.
class GroupNormRows {
 public:
  explicit GroupNormRows(const std::vector<GroupInfo>& groups) {
    for (const GroupInfo& g : groups) names_.push_back(g.name);
    std::ranges::sort(names_);
    names_.erase(std::unique(names_.begin(), names_.end()), names_.end());
    for (const GroupInfo& g : groups) {
      const auto at = std::ranges::lower_bound(names_, g.name) - names_.begin();
      places_[{g.model, g.id}] = static_cast<std::int32_t>(at);
    }
  }

  void reserve(std::size_t rows) {
    step_.reserve(rows);
    for (Small* small : {&segment_, &model_index_, &dp_group_, &group_, &rank_})
      small->reserve(rows);
    for (std::vector<float>* values : {&norm_, &max_}) values->reserve(rows);
  }

  void add(const StepRow& step, const std::vector<WorkerStepRow>& workers,
           std::vector<GroupStepRow>& groups) {
    sort_by_name(step.model, groups);
    for (const GroupStepRow& g : groups) {
      const std::size_t count = std::min({workers.size(), g.norms.size(), g.maxima.size()});
      step_.insert(step_.end(), count, static_cast<std::int64_t>(step.step));
      append(segment_, count, step.model.segment);
      append(model_index_, count, step.model.model_index);
      append(dp_group_, count, step.model.dp_group);
      group_.insert(group_.end(), count, place_of(step.model, g));
      for (std::size_t w = 0; w < count; ++w) append(rank_, 1, workers[w].rank);
      norm_.insert(norm_.end(), g.norms.begin(), g.norms.begin() + std::ptrdiff_t(count));
      max_.insert(max_.end(), g.maxima.begin(), g.maxima.begin() + std::ptrdiff_t(count));
    }
  }

  std::vector<Series> finish() && {
    std::vector<Series> out;
    out.push_back({"step", std::move(step_), {}});
    out.push_back({"segment", std::move(segment_), {}});
    out.push_back({"model_index", std::move(model_index_), {}});
    out.push_back({"dp_group", std::move(dp_group_), {}});
    out.push_back({"group", std::move(group_), std::move(names_), true});
    out.push_back({"rank", std::move(rank_), {}});
    out.push_back({"grad_norm", std::move(norm_), {}});
    out.push_back({"grad_max", std::move(max_), {}});
    return out;
  }

 private:
  static void append(Small& series, std::size_t count, std::uint32_t value) {
    series.insert(series.end(), count, bounded(value));
  }

  std::int32_t place_of(const ModelKey& model, const GroupRecord& group) const {
    const auto known = places_.find({model, group.id});
    return known == places_.end() ? -1 : known->second;
  }

  void sort_by_name(const ModelKey& model, std::vector<GroupStepRow>& groups) const {
    const auto place = [&](const GroupRecord& g) { return place_of(model, g); };
    std::ranges::stable_sort(groups, {}, place);
  }

  std::vector<std::string> names_;  // sorted
  std::map<std::pair<ModelKey, std::uint64_t>, std::int32_t> places_;
  Integers step_;
  Small segment_, model_index_, dp_group_, group_, rank_;
  std::vector<float> norm_, max_;
};

}  // namespace

std::vector<TableInfo> stored_tables() {
  std::vector<TableInfo> out;
  runlog::each_table([&](const auto& table) {
    TableInfo& info = out.emplace_back(TableInfo{table.name, table.meaning, {}});
    for (const auto& c : table.columns) info.columns.push_back(info_of(c, false));
  });
  return out;
}

std::vector<TableInfo> shown_tables() {
  std::vector<TableInfo> out;
  for (const runlog::View& view : runlog::views()) {
    TableInfo& info = out.emplace_back(TableInfo{view.name, view.meaning, {}});
    for (const ViewColumn& c : view.columns) {
      info.columns.push_back(info_of(c, !c.names.empty() || c.shown == Display::kHex));
    }
  }
  return out;
}

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

Result<std::uint64_t> RunLog::steps_written() const {
  return state_->db.query_integer("SELECT ifnull(max(id), 0) FROM step");
}

Result<std::vector<Series>> RunLog::frame(std::string_view name, StepRows wanted) const {
  PRESUM_ASSIGN(const runlog::View* view, runlog::named_view(name));
  std::vector<std::string> sources;
  std::vector<SeriesReader> readers;
  for (const ViewColumn& c : view->columns) {
    sources.push_back(c.source);
    readers.emplace_back(c);
  }
  const bool of_steps = view->from.starts_with("step s");
  PRESUM_ASSIGN(auto rows,
                state_->db.prepare(fmt::format(
                    "SELECT {} FROM {} {} ORDER BY {}", fmt::join(sources, ", "), view->from,
                    of_steps ? "WHERE s.id > ? AND s.id <= ?" : "", view->order)));
  if (of_steps) rows.with(wanted.after, wanted.up_to);
  while (true) {
    PRESUM_ASSIGN(const auto row, rows.next());
    if (!row) break;
    for (std::size_t c = 0; c < readers.size(); ++c) readers[c].read(rows, static_cast<int>(c));
  }
  std::vector<Series> out;
  out.reserve(readers.size());
  for (SeriesReader& reader : readers) out.push_back(std::move(reader).finish());
  return out;
}

Result<std::vector<Series>> RunLog::group_norms() const {
  runlog::Database& db = state_->db;
  PRESUM_ASSIGN(const auto names, groups());
  // A hint, limited by the size of the file: the lengths in it are not trusted.
  constexpr std::uint64_t kBytesOfARow = 2 * sizeof(float);
  std::error_code error;
  const auto bytes = std::filesystem::file_size(state_->file, error);
  const auto count = db.query_integer("SELECT ifnull(sum(length(norms)), 0) / 4 FROM group_step");
  using runlog::columns_of;
  PRESUM_ASSIGN(auto steps, selection(db, runlog::kStepTable, runlog::kStepOrder,
                                      columns_of(runlog::kStepTable, {"id", "step", "segment",
                                                                      "model_index", "dp_group"})));
  PRESUM_ASSIGN(auto workers,
                selection(db, runlog::kWorkerStepTable, "WHERE step_id=? ORDER BY replica",
                          columns_of(runlog::kWorkerStepTable, {"rank"})));
  PRESUM_ASSIGN(auto groups,
                selection(db, runlog::kGroupStepTable, "WHERE step_id=?",
                          columns_of(runlog::kGroupStepTable, {"group_id", "norms", "maxima"})));
  GroupNormRows out(names);
  out.reserve(error ? 0 : std::min(count.value_or(0), bytes / kBytesOfARow));
  while (true) {
    PRESUM_ASSIGN(const auto step, steps.next());
    if (!step) return std::move(out).finish();
    PRESUM_ASSIGN(const auto present, workers.with(step->id).all());
    PRESUM_ASSIGN(auto norms, groups.with(step->id).all());
    out.add(*step, present, norms);
  }
}

}  // namespace presum
