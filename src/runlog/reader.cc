// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <iterator>
#include <limits>
#include <map>
#include <unordered_map>
#include <utility>

#include "base/try.h"
#include "runlog/file_checks.h"
#include "runlog/run_log_state.h"
#include "runlog/schema.h"

namespace presum {

using runlog::ColumnSet;
using runlog::Database;
using runlog::kStepOrder;
using runlog::read_all;
using runlog::records_of;

namespace {

using runlog::key_of;
using runlog::MissingRow;
using runlog::Selection;
using runlog::StepRow;
using runlog::WorkerRow;

Status damaged(const std::filesystem::path& file, const StepRecord& step, const char* what) {
  return fail(
      ErrorCode::kCorrupt,
      fmt::format("{} is damaged: copy it again from where it was written, or from a backup "
                  "(step {} of segment {} {})",
                  file.string(), step.step, step.model.segment, what));
}

// Numbers that no training has, for the readers of steps reckon with them.
Status check_steps(const std::vector<StepRow>& steps, const std::filesystem::path& file) {
  constexpr std::uint32_t kMost = std::numeric_limits<std::int32_t>::max();
  for (const StepRow& s : steps) {
    if (s.workers_expected == 0 || s.workers_expected > kMost) {
      return damaged(file, s, "has no number of workers");
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
  PRESUM_ASSIGN(auto rows, Selection<MissingRow>::prepare(db, runlog::missing_table(),
                                                          "ORDER BY step_id, replica"));
  return rows.each([&](const MissingRow& row) {
    const auto at = by_id.find(row.step_id);
    if (at != by_id.end()) at->second->missing_replicas.push_back(row.replica);
  });
}

Result<std::vector<StepCount>> count_steps(Database& db) {
  PRESUM_ASSIGN(auto rows, db.prepare("SELECT segment, module, shard, count(*), max(step) "
                                      "FROM step GROUP BY segment, module, shard "
                                      "ORDER BY segment, module, shard"));
  std::vector<StepCount> out;
  while (true) {
    PRESUM_ASSIGN(const bool row, rows.next());
    if (!row) return out;
    out.push_back({.model = {rows.small(0), rows.small(1), rows.small(2)},
                   .steps = rows.integer(3),
                   .end = rows.integer(4) + 1});
  }
}

// Where a writer was killed while it closed the file, a journal is to be rolled back first, which
// takes somebody who may write.
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
  if (!std::filesystem::exists(file, error)) {
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
  PRESUM_ASSIGN(auto steps,
                read_all(state_->db, runlog::step_table(), kStepOrder, ColumnSet::kWithoutBlobs));
  PRESUM_TRY(check_steps(steps, state_->file));
  PRESUM_TRY(read_missing(state_->db, steps));
  return records_of<StepRecord>(std::move(steps));
}

Result<std::vector<ModuleInfo>> RunLog::modules() const {
  PRESUM_ASSIGN(const auto workers, read_all(state_->db, runlog::worker_table(),
                                             "WHERE segment = (SELECT max(segment) FROM worker) "
                                             "ORDER BY segment, module, shard, replica"));
  std::vector<ModuleInfo> out;
  for (const WorkerRow& w : workers) {
    if (out.empty() || out.back().model != w.model) out.push_back({.model = w.model});
    out.back().workers_expected = w.replicas;
    out.back().workers.push_back({w.rank, w.replica, w.host});
  }
  return out;
}

Result<std::vector<Fact>> RunLog::facts() const {
  return read_all(state_->db, runlog::fact_table(), "ORDER BY segment, rank, key, module");
}

Result<std::vector<NoteRecord>> RunLog::notes() const {
  PRESUM_ASSIGN(auto rows, read_all(state_->db, runlog::note_table(), "ORDER BY id"));
  return records_of<NoteRecord>(std::move(rows));
}

Result<std::vector<Finding>> RunLog::findings() const {
  PRESUM_ASSIGN(auto rows,
                read_all(state_->db, runlog::finding_table(),
                         "ORDER BY severity DESC, first_step, segment, module, shard, id"));
  return records_of<Finding>(std::move(rows));
}

Result<std::vector<RunLog::Check>> RunLog::checks() const {
  PRESUM_ASSIGN(auto rows, read_all(state_->db, runlog::check_table(),
                                    "ORDER BY segment, module, shard, position"));
  return records_of<Check>(std::move(rows));
}

Result<std::vector<SegmentInfo>> RunLog::segments() const {
  PRESUM_ASSIGN(auto rows, read_all(state_->db, runlog::segment_table(), "ORDER BY segment"));
  return records_of<SegmentInfo>(std::move(rows));
}

std::string incomplete_text(const SegmentInfo& segment) {
  const auto since = segment.incomplete_after
                         ? fmt::format("after step {}", *segment.incomplete_after)
                         : std::string("from the first step on");
  return fmt::format("incomplete {}: {}", since, segment.incomplete);
}

Result<std::vector<GroupInfo>> RunLog::groups() const {
  return read_all(state_->db, runlog::group_table(), "ORDER BY segment, module, shard, name");
}

Result<std::vector<Continuation>> RunLog::continuations() const {
  return read_all(state_->db, runlog::continuation_table(), "ORDER BY segment, module, shard");
}

Result<std::vector<StepCount>> RunLog::step_counts() const { return count_steps(state_->db); }

Result<std::uint64_t> RunLog::steps_before(const StepKey& step) const {
  PRESUM_ASSIGN(auto rows, state_->db.prepare("SELECT count(*) FROM step WHERE segment=? AND "
                                              "module=? AND shard=? AND step<?"));
  rows.with(step.model.segment, step.model.module, step.model.shard, step.step);
  PRESUM_TRY(rows.next());
  return rows.integer(0);
}

Result<std::vector<FinalStateRecord>> RunLog::final_states() const {
  return read_all(state_->db, runlog::final_state_table(),
                  "ORDER BY segment, module, shard, replica");
}

Result<std::vector<MomentRecord>> RunLog::moments() const {
  return read_all(state_->db, runlog::moment_table(),
                  "ORDER BY segment, module, shard, replica, kind, step, number");
}

Result<std::vector<StallRecord>> RunLog::stalls() const {
  PRESUM_ASSIGN(auto rows, read_all(state_->db, runlog::stall_table(), "ORDER BY segment, number"));
  PRESUM_ASSIGN(const auto ranks, read_all(state_->db, runlog::stalled_rank_table(),
                                           "ORDER BY segment, number, rank"));
  for (StallRecord& stall : rows) {
    for (const runlog::StalledRankRow& r : ranks) {
      if (r.segment == stall.segment && r.number == stall.number) stall.all.push_back(r);
    }
  }
  return rows;
}

Result<std::vector<AuditedStep>> RunLog::audits() const {
  return read_all(state_->db, runlog::audit_table(),
                  "ORDER BY segment, module, shard, step, replica");
}

}  // namespace presum
