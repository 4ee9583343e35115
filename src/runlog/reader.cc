// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "base/try.h"
#include "runlog/reading.h"
#include "runlog/schema.h"
#include "runlog/shape.h"

namespace presum {

StepRecord runlog::read_step(const Statement& row) {
  StepRecord r;
  int c = 0;
  r.segment = row.small(c++);
  r.module = row.small(c++);
  r.shard = row.small(c++);
  r.step = row.integer(c++);
  r.workers_expected = row.small(c++);
  r.workers_seen = row.small(c++);
  for (double* value :
       {&r.loss_mean, &r.loss_std, &r.loss_range, &r.grad_norm_mean, &r.grad_norm_std,
        &r.grad_norm_cv, &r.cosine_mean, &r.cosine_low, &r.cosine_high, &r.consistency,
        &r.reduced_norm, &r.signal, &r.noise, &r.noise_scale, &r.effective_workers, &r.tokens_cv}) {
    *value = row.number(c++);
  }
  r.cosine_source = static_cast<CosineSource>(row.small(c++));
  r.reduced_disagrees = row.small(c++) != 0;
  r.distinct_gradients = row.small(c++);
  r.sketch_size = row.small(c++);
  r.mean_norm = row.number(c++);
  r.mean_norm_error = row.number(c++);
  return r;
}

namespace {

using runlog::Database;
using runlog::for_each_row;
using runlog::read_all;
using runlog::Statement;

Status damaged(const std::filesystem::path& file, const StepRecord& step, const char* what) {
  return fail(
      ErrorCode::kCorrupt,
      fmt::format("{} is damaged: copy it again from where it was written, or from a backup "
                  "(step {} of segment {} {})",
                  file.string(), step.step, step.segment, what));
}

// Numbers that no training has, for the readers of steps reckon with them.
Status check_steps(const std::vector<StepRecord>& steps, const std::filesystem::path& file) {
  constexpr std::uint32_t kMost = std::numeric_limits<std::int32_t>::max();
  const auto key = [](const StepRecord& s) {
    return std::tuple(s.segment, s.module, s.shard, s.step);
  };
  for (const StepRecord& s : steps) {
    if (s.workers_expected == 0 || s.workers_expected > kMost) {
      return damaged(file, s, "has no number of workers");
    }
    if (&s != &steps.front() && key(*(&s - 1)) >= key(s)) {
      return damaged(file, s, "is there twice");
    }
  }
  return {};
}

// REQUIRES: `steps` in the order of the view `missing`.
Status read_missing(Database& db, std::vector<StepRecord>& steps) {
  auto at = steps.begin();
  return for_each_row(
      db, "SELECT segment, module, shard, step, replica FROM missing", [&](const Statement& row) {
        const auto key = std::tuple(row.small(0), row.small(1), row.small(2), row.integer(3));
        const auto key_at = [&] {
          return std::tuple(at->segment, at->module, at->shard, at->step);
        };
        while (at != steps.end() && key_at() < key) ++at;
        if (at != steps.end() && key_at() == key) at->missing_replicas.push_back(row.small(4));
      });
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
  auto steps =
      read_all<StepRecord>(state_->db,
                           fmt::format("SELECT {} FROM step ORDER BY segment, module, shard, step",
                                       runlog::kStepColumns),
                           runlog::read_step);
  if (!steps) return steps;
  PRESUM_TRY(check_steps(*steps, state_->file));
  PRESUM_TRY(read_missing(state_->db, *steps));
  return steps;
}

Result<std::vector<ModuleInfo>> RunLog::modules() const {
  std::map<std::pair<std::uint32_t, std::uint32_t>, ModuleInfo> modules;
  const auto done = for_each_row(
      state_->db,
      "SELECT module, shard, replicas, rank, replica, host FROM worker WHERE segment = "
      "(SELECT max(segment) FROM worker) ORDER BY module, shard, replica",
      [&](const Statement& row) {
        ModuleInfo& m = modules[{row.small(0), row.small(1)}];
        m.module = row.small(0);
        m.shard = row.small(1);
        m.workers_expected = row.small(2);
        m.workers.push_back({row.small(3), row.small(4), row.text(5)});
      });
  if (!done) return done.error();
  std::vector<ModuleInfo> out;
  out.reserve(modules.size());
  for (auto& [key, info] : modules) out.push_back(std::move(info));
  return out;
}

Result<std::vector<Fact>> RunLog::facts() const {
  return read_all<Fact>(
      state_->db,
      "SELECT segment, rank, key, value, module FROM fact ORDER BY segment, rank, key, "
      "module",
      [](const Statement& row) {
        return Fact{row.small(0), row.small(1), row.text(2), row.text(3), row.small(4)};
      });
}

Result<std::vector<NoteRecord>> RunLog::notes() const {
  return read_all<NoteRecord>(state_->db, "SELECT segment, rank, text FROM note ORDER BY id",
                              [](const Statement& row) {
                                return NoteRecord{row.small(0), row.small(1), row.text(2)};
                              });
}

}  // namespace presum
