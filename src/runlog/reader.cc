// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

#include "base/try.h"
#include "runlog/file_checks.h"
#include "runlog/run_log_state.h"
#include "runlog/schema.h"

namespace presum {

using runlog::Database;
using runlog::kStepOrder;
using runlog::read_all;
using runlog::records_of;

namespace {

using runlog::key_of;
using runlog::MissingRow;
using runlog::StepRow;
using runlog::Table;
using runlog::WorkerRow;

Status damaged(const std::filesystem::path& file, const StepRecord& step, const char* what) {
  return fail(
      ErrorCode::kCorrupt,
      fmt::format("{} is damaged: copy it again from where it was written, or from a backup "
                  "(step {} of segment {} {})",
                  file.string(), step.step, step.model.segment, what));
}

// Rejects numbers that no training produces, because readers of steps compute with them.
Status check_steps(const std::vector<StepRow>& steps, const std::filesystem::path& file) {
  constexpr std::uint32_t kMost = std::numeric_limits<std::int32_t>::max();
  for (const StepRow& s : steps) {
    if (s.workers_expected == 0 || s.workers_expected > kMost) {
      return damaged(file, s, "has no number of ranks");
    }
    if (&s != &steps.front() && key_of(*(&s - 1)) >= key_of(s)) {
      return damaged(file, s, "is there twice");
    }
  }
  return {};
}

Status read_missing(Database& db, std::vector<StepRow>& steps) {
  std::unordered_map<std::uint64_t, StepRow*> by_id;
  for (StepRow& s : steps) by_id.emplace(s.id, &s);
  PRESUM_ASSIGN(auto rows, selection(db, runlog::kMissingTable, "ORDER BY step_id, replica"));
  return rows.each([&](const MissingRow& row) {
    const auto at = by_id.find(row.step_id);
    if (at != by_id.end()) at->second->missing_replicas.push_back(row.replica);
  });
}

// Calls `visit` with the rows of each step that has rows.
template <class Record, class Row, class Visit>
Status for_each_step(Database& db, const Table<Row>& table, std::string_view rest, Visit&& visit) {
  PRESUM_ASSIGN(auto steps,
                selection(db, runlog::kStepTable, kStepOrder, without_blobs(runlog::kStepTable)));
  PRESUM_ASSIGN(auto rows, selection(db, table, rest, without_blobs(table)));
  while (true) {
    PRESUM_ASSIGN(const auto step, steps.next());
    if (!step) return {};
    std::vector<Record> records;
    rows.with(step->id);
    PRESUM_TRY(rows.each([&](Row&& row) { records.push_back(std::move(row)); }));
    if (!records.empty()) visit(key_of(*step), records);
  }
}

// If a writer was killed while closing the file, its journal must be rolled back first. That
// requires write permission.
Status recover(const std::filesystem::path& file) {
  PRESUM_TRY(runlog::check_journal(file));
  auto db = Database::open(file, Database::Mode::kRecover);
  const auto seen = db ? db->query_integer("SELECT count(*) FROM sqlite_schema")
                       : Result<std::uint64_t>(db.error());
  if (seen) return {};
  return fail(
      ErrorCode::kIo,
      fmt::format("{}: its writer was killed while it closed the file, which must be opened "
                  "once where it can be written: copy the folder and name the copy ({})",
                  file.string(), seen.error().message));
}

Result<Database> open_checked(const std::filesystem::path& file) {
  auto db = Database::open(file, Database::Mode::kRead);
  if (!db) return db;
  if (!db->query_integer("SELECT count(*) FROM sqlite_schema") && db->is_to_be_recovered()) {
    *db = Database();
    PRESUM_TRY(recover(file));
    db = Database::open(file, Database::Mode::kRead);
    if (!db) return db;
  }
  PRESUM_TRY(runlog::check_identity(*db, file));
  PRESUM_TRY(runlog::check_shape(*db, file));
  return db;
}

}  // namespace

RunLog::RunLog(std::unique_ptr<State> state) : state_(std::move(state)) {}
RunLog::RunLog(RunLog&&) noexcept = default;
RunLog& RunLog::operator=(RunLog&&) noexcept = default;
RunLog::~RunLog() = default;

Result<RunLog> RunLog::open(const std::filesystem::path& run) {
  std::error_code error;
  if (!std::filesystem::exists(run, error)) {
    return fail(ErrorCode::kNotFound, fmt::format("no such run: {}", run.string()));
  }
  const bool folder = std::filesystem::is_directory(run, error);
  const auto file = folder ? run / runlog::kFileName : run;
  const bool there = std::filesystem::exists(file, error);
  if (error) {
    return fail(ErrorCode::kIo, fmt::format("cannot read {}: {}", file.string(), error.message()));
  }
  if (!there) {
    return fail(ErrorCode::kNotFound,
                fmt::format("{} is not a run: it holds no {} (a recording that has just begun, or "
                            "was killed as it began, has none)",
                            run.string(), runlog::kFileName));
  }
  PRESUM_TRY(runlog::check_file(file));
  PRESUM_ASSIGN(auto db, open_checked(file));
  return RunLog(std::make_unique<State>(State{file, std::move(db)}));
}

std::string RunLog::name() const {
  const auto file = std::filesystem::absolute(state_->file).lexically_normal();
  return file.parent_path().filename().string();
}

Result<std::vector<StepRecord>> RunLog::steps() const {
  PRESUM_ASSIGN(auto rows, selection(state_->db, runlog::kStepTable, kStepOrder,
                                     without_blobs(runlog::kStepTable)));
  PRESUM_ASSIGN(auto steps, rows.all());
  PRESUM_TRY(check_steps(steps, state_->file));
  PRESUM_TRY(read_missing(state_->db, steps));
  return records_of<StepRecord>(std::move(steps));
}

Result<std::vector<StepRecord>> RunLog::last_steps() const {
  constexpr std::uint64_t kSteps = 1000;
  PRESUM_ASSIGN(const auto written, steps_written());
  PRESUM_ASSIGN(auto selected, selection(state_->db, runlog::kStepTable,
                                         fmt::format("WHERE id > ? {}", kStepOrder),
                                         without_blobs(runlog::kStepTable)));
  selected.with(written - std::min(written, kSteps));
  PRESUM_ASSIGN(auto steps, selected.all());
  PRESUM_TRY(check_steps(steps, state_->file));
  PRESUM_ASSIGN(auto workers,
                selection(state_->db, runlog::kWorkerStepTable, "WHERE step_id=? ORDER BY replica",
                          without_blobs(runlog::kWorkerStepTable)));
  std::vector<StepRecord> out;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    StepRow& step = steps[i];
    if (i + 1 < steps.size() && steps[i + 1].model == step.model) continue;
    workers.with(step.id);
    PRESUM_TRY(
        workers.each([&](runlog::WorkerStepRow&& row) { step.workers.push_back(std::move(row)); }));
    out.push_back(std::move(step));
  }
  return out;
}

Result<std::vector<ModelInfo>> RunLog::modules() const {
  PRESUM_ASSIGN(const auto workers, read_all(state_->db, runlog::kWorkerTable,
                                             "WHERE segment = (SELECT max(segment) FROM worker) "
                                             "ORDER BY segment, model_index, dp_group, replica"));
  std::vector<ModelInfo> out;
  for (const WorkerRow& w : workers) {
    if (out.empty() || out.back().model != w.model) out.push_back({.model = w.model});
    out.back().workers_expected = w.replicas;
    out.back().workers.push_back({w.rank, w.replica, w.host});
  }
  return out;
}

Result<std::vector<Fact>> RunLog::facts() const {
  return read_all(state_->db, runlog::kFactTable, "ORDER BY segment, rank, key, model_index");
}

Result<std::vector<NoteRecord>> RunLog::notes() const {
  return read_all(state_->db, runlog::kNoteTable, "ORDER BY rowid");
}

Result<std::vector<Finding>> RunLog::findings() const {
  PRESUM_ASSIGN(auto rows,
                read_all(state_->db, runlog::kFindingTable,
                         "ORDER BY severity DESC, first_step, segment, model_index, dp_group, id"));
  return records_of<Finding>(std::move(rows));
}

Result<std::vector<RunLog::Check>> RunLog::checks() const {
  PRESUM_ASSIGN(auto rows, read_all(state_->db, runlog::kCheckTable,
                                    "ORDER BY segment, model_index, dp_group, position"));
  return records_of<Check>(std::move(rows));
}

Result<std::vector<SegmentInfo>> RunLog::segments() const {
  PRESUM_ASSIGN(auto rows, read_all(state_->db, runlog::kSegmentTable, "ORDER BY segment"));
  return records_of<SegmentInfo>(std::move(rows));
}

std::string incomplete_text(const SegmentInfo& segment) {
  const auto since = segment.incomplete_after
                         ? fmt::format("after step {}", *segment.incomplete_after)
                         : std::string("from the first step on");
  return fmt::format("incomplete {}: {}", since, segment.incomplete);
}

Result<std::vector<GroupInfo>> RunLog::groups() const {
  return read_all(state_->db, runlog::kGroupTable, "ORDER BY segment, model_index, dp_group, name");
}

Result<std::vector<Continuation>> RunLog::continuations() const {
  return read_all(state_->db, runlog::kContinuationTable,
                  "ORDER BY segment, model_index, dp_group");
}

Result<std::vector<StepCount>> RunLog::step_counts() const {
  PRESUM_ASSIGN(auto rows,
                state_->db.prepare("SELECT segment, model_index, dp_group, count(*), max(step) "
                                   "FROM step GROUP BY segment, model_index, dp_group "
                                   "ORDER BY segment, model_index, dp_group"));
  std::vector<StepCount> out;
  while (true) {
    PRESUM_ASSIGN(const bool row, rows.next());
    if (!row) return out;
    out.push_back({.model = {rows.small(0), rows.small(1), rows.small(2)},
                   .steps = rows.integer(3),
                   .end = rows.integer(4) + 1});
  }
}

Result<std::uint64_t> RunLog::steps_before(const StepKey& step) const {
  PRESUM_ASSIGN(auto rows, state_->db.prepare("SELECT count(*) FROM step WHERE segment=? AND "
                                              "model_index=? AND dp_group=? AND step<?"));
  rows.with(step.model.segment, step.model.model_index, step.model.dp_group, step.step);
  PRESUM_TRY(rows.next());
  return rows.integer(0);
}

Result<std::vector<FinalStateRecord>> RunLog::final_states() const {
  return read_all(state_->db, runlog::kFinalStateTable,
                  "ORDER BY segment, model_index, dp_group, replica");
}

Result<std::vector<SnapshotRecord>> RunLog::snapshots() const {
  return read_all(state_->db, runlog::kSnapshotTable,
                  "ORDER BY segment, model_index, dp_group, replica, kind, step, number");
}

Result<std::vector<StallRecord>> RunLog::stalls() const {
  PRESUM_ASSIGN(auto rows, read_all(state_->db, runlog::kStallTable, "ORDER BY segment, number"));
  PRESUM_ASSIGN(const auto ranks,
                read_all(state_->db, runlog::kStalledRankTable, "ORDER BY segment, number, rank"));
  for (StallRecord& stall : rows) {
    for (const runlog::StalledRankRow& r : ranks) {
      if (r.segment == stall.segment && r.number == stall.number) stall.all.push_back(r);
    }
  }
  return rows;
}

Result<std::vector<AuditedStep>> RunLog::audits() const {
  return read_all(state_->db, runlog::kAuditTable,
                  "ORDER BY segment, model_index, dp_group, step, replica");
}

Status RunLog::for_each_workers(const WorkersVisitor& visit) const {
  return for_each_step<WorkerRecord>(state_->db, runlog::kWorkerStepTable,
                                     "WHERE step_id=? ORDER BY replica", visit);
}

Status RunLog::for_each_groups(const GroupsVisitor& visit) const {
  return for_each_step<GroupRecord>(state_->db, runlog::kGroupStepTable,
                                    "WHERE step_id=? ORDER BY group_id", visit);
}

Result<std::vector<float>> RunLog::cosines(const StepKey& step) const {
  PRESUM_ASSIGN(auto rows,
                selection(state_->db, runlog::kStepTable,
                          "WHERE segment=? AND model_index=? AND dp_group=? AND step=?"));
  rows.with(step.model.segment, step.model.model_index, step.model.dp_group, step.step);
  PRESUM_ASSIGN(auto row, rows.next());
  return row ? std::move(row->cosines) : std::vector<float>();
}

}  // namespace presum
