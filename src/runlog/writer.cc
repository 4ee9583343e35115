// SPDX-License-Identifier: Apache-2.0
#include "runlog/writer.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/random_id.h"
#include "base/try.h"
#include "presum/version.h"
#include "runlog/keyed_hash.h"
#include "runlog/run_file.h"
#include "runlog/salt.h"
#include "runlog/step_writer.h"
#include "runlog/tables.h"

namespace presum::runlog {
namespace {

constexpr Seconds kCommitEvery{1.0};

std::string utc_now() {
  const auto now =
      std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now());
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now));
}

template <class Record>
Status insert(Database& db, const Table<Record>& table, const Record& record,
              std::string_view how = "INSERT") {
  PRESUM_ASSIGN(auto rows, insertion(db, table, how));
  return rows.run(record);
}

// Best effort: leaves one plain file that can also be opened from a read-only folder. A reader that
// takes longer prevents it: SQLite does not wait for readers here.
void leave_one_file(Database& db) {
  constexpr int kTries = 40;
  constexpr std::chrono::milliseconds kPause{50};
  for (int i = 0; i < kTries && !db.execute("PRAGMA journal_mode=DELETE"); ++i) {
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

struct Writer::State {
  State(RunFile opened, MonotonicClock injected)
      : file(std::move(opened)), clock(std::move(injected)) {}

  RunFile file;
  MonotonicClock clock;
  std::optional<StepWriter> steps;
  std::uint64_t run = 0;
  SegmentRow segment;
  SegmentRow committed_segment;
  std::uint64_t last_written = 0;  // the id of this segment's last written step; 0: none
  std::uint64_t last_committed = 0;
  std::optional<std::uint64_t> written_step;  // the highest step number written
  std::optional<std::uint64_t> committed_step;
  bool in_transaction = false;
  bool closed = false;
  Seconds began{0};

  Database& db() { return file.db(); }

  Status begin_segment(std::uint64_t salt) {
    run = base::random_id();
    segment.run = fmt::format("{:016x}", run);
    segment.started_utc = utc_now();
    segment.presum_version = version();
    segment.salt = fmt::format("{:016x}", KeyedHash(salt, kSaltNames)(0));
    PRESUM_TRY(db().execute("BEGIN IMMEDIATE"));
    auto written = insert_segment();
    if (written) written = db().execute("COMMIT");
    if (!written) {
      static_cast<void>(db().execute("ROLLBACK"));
      return written;
    }
    committed_segment = segment;
    // Best effort: a reader may prevent it.
    static_cast<void>(db().execute("PRAGMA wal_checkpoint(PASSIVE)"));
    PRESUM_ASSIGN(steps, StepWriter::prepare(db(), salt));
    file.watch(segment.segment, segment.run);
    return {};
  }

  // REQUIRES: an open transaction, so that two recordings that begin at once get different numbers.
  Status insert_segment() {
    PRESUM_ASSIGN(const auto last,
                  db().query_integer("SELECT ifnull(max(segment), 0) FROM segment"));
    if (last >= std::numeric_limits<std::uint32_t>::max()) {
      return fail(ErrorCode::kCorrupt, "the run log's last segment has no number after it");
    }
    segment.segment = static_cast<std::uint32_t>(last) + 1;
    return insert(db(), kSegmentTable, segment);
  }

  template <class Change>
  Status change_segment(Change&& change) {
    SegmentRow changed = segment;
    change(changed);
    PRESUM_TRY(insert(db(), kSegmentTable, changed, "INSERT OR REPLACE"));
    segment = changed;
    return {};
  }

  Status begin() {
    if (in_transaction) return {};
    if (closed) return fail(ErrorCode::kInvalidArgument, "the run log is closed");
    PRESUM_TRY(file.check(last_committed));
    PRESUM_TRY(db().execute("BEGIN"));
    in_transaction = true;
    began = clock();
    return {};
  }

  Status commit() {
    if (!in_transaction) return {};
    in_transaction = false;
    auto done = file.check(last_committed);
    if (done) done = db().execute("COMMIT");
    if (done) {
      file.remember();
      last_committed = last_written;
      committed_step = written_step;
      committed_segment = segment;
      return done;
    }
    static_cast<void>(db().execute("ROLLBACK"));
    last_written = last_committed;
    written_step = committed_step;
    segment = committed_segment;
    return done;
  }

  // Writes all of the step's rows or none.
  Status write_step(StepRecord record) {
    const std::uint64_t number = record.step;
    PRESUM_TRY(db().execute("SAVEPOINT step"));
    const auto id = steps->write(std::move(record));
    if (!id) static_cast<void>(db().execute("ROLLBACK TO step"));
    auto released = db().execute("RELEASE step");
    if (!id) return id.error();
    last_written = *id;
    written_step = std::max(written_step.value_or(0), number);
    return released;
  }

  Status remove(const char* table, const ModelKey& model) {
    return db().execute(
        fmt::format("DELETE FROM {} WHERE segment={} AND model_index={} AND dp_group={}", table,
                    model.segment, model.model_index, model.dp_group)
            .c_str());
  }

  void release() {
    steps.reset();
    file.release();
  }
};

Writer::Writer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Writer::Writer(Writer&&) noexcept = default;
Writer& Writer::operator=(Writer&&) noexcept = default;
Writer::~Writer() {
  if (!state_ || state_->closed) return;
  static_cast<void>(state_->commit());
  state_->release();
}

Result<Writer> Writer::open(const std::filesystem::path& folder, MonotonicClock clock,
                            Journal journal, std::uint64_t salt) {
  PRESUM_ASSIGN(auto file, RunFile::open(folder, journal));
  auto state = std::make_unique<State>(std::move(file), std::move(clock));
  PRESUM_TRY(state->begin_segment(salt));
  return Writer(std::move(state));
}

std::uint64_t Writer::run() const { return state_->run; }
std::uint32_t Writer::segment() const { return state_->segment.segment; }

Status Writer::add(const packet::Hello& hello) {
  PRESUM_TRY(state_->begin());
  const Identity& who = hello.header.identity;
  const ModelKey model{segment(), who.model_index, who.dp_group};
  const WorkerRow worker{model, who.replica, who.replicas, who.rank, hello.facts.host};
  PRESUM_TRY(insert(state_->db(), kWorkerTable, worker, "INSERT OR REPLACE"));
  PRESUM_ASSIGN(auto facts, insertion(state_->db(), kFactTable, "INSERT OR REPLACE"));
  for (const auto& [key, value] : hello.facts.facts) {
    PRESUM_TRY(facts.run({segment(), who.rank, key, value, who.model_index}));
  }
  PRESUM_ASSIGN(auto groups, insertion(state_->db(), kGroupTable, "INSERT OR IGNORE"));
  std::uint32_t position = 0;
  for (const GroupName& g : hello.facts.groups) {
    PRESUM_TRY(groups.run({g, model, position++}));
  }
  return {};
}

Status Writer::add(const packet::Note& note) {
  PRESUM_TRY(state_->begin());
  const Identity& who = note.header.identity;
  const ModelKey model{segment(), who.model_index, who.dp_group};
  if (!note.state.states.empty()) {
    PRESUM_TRY(insert(state_->db(), kFinalStateTable, {note.state, model, who.replica},
                      "INSERT OR REPLACE"));
  }
  if (note.text.empty()) return {};
  return insert(state_->db(), kNoteTable, {segment(), who.rank, note.text});
}

Status Writer::add(const packet::SnapshotOf& snapshot) {
  PRESUM_TRY(state_->begin());
  const Identity& who = snapshot.header.identity;
  SnapshotRecord row{snapshot.snapshot, {segment(), who.model_index, who.dp_group}, who.replica};
  PRESUM_ASSIGN(
      auto numbers,
      state_->db().prepare("SELECT coalesce(max(number) + 1, 0) FROM snapshot WHERE segment=? "
                           "AND model_index=? AND dp_group=? AND replica=? AND kind=? AND step=?"));
  numbers.with(segment(), who.model_index, who.dp_group, who.replica,
               static_cast<std::uint32_t>(row.kind), row.step);
  PRESUM_TRY(numbers.next());
  row.number = numbers.small(0);
  PRESUM_TRY(insert(state_->db(), kSnapshotTable, row, "INSERT"));
  PRESUM_ASSIGN(
      auto old,
      state_->db().prepare(
          "DELETE FROM snapshot WHERE segment=?1 AND model_index=?2 AND dp_group=?3 AND "
          "replica=?4 AND kind=2 AND (step, number) NOT IN (SELECT step, number FROM "
          "snapshot WHERE segment=?1 AND model_index=?2 AND dp_group=?3 AND replica=?4 AND "
          "kind=2 ORDER BY step DESC, number DESC LIMIT 8)"));
  old.with(segment(), who.model_index, who.dp_group, who.replica);
  return old.run();
}

Status Writer::add(const Stall& stall) {
  PRESUM_TRY(state_->begin());
  PRESUM_TRY(insert(state_->db(), kStallTable, {stall, segment()}, "INSERT OR REPLACE"));
  PRESUM_ASSIGN(auto ranks, insertion(state_->db(), kStalledRankTable, "INSERT OR REPLACE"));
  for (const StalledRank& r : stall.all) PRESUM_TRY(ranks.run({r, segment(), stall.number}));
  return {};
}

Status Writer::add(StepRecord record) {
  PRESUM_TRY(state_->begin());
  return state_->write_step(std::move(record));
}

Status Writer::replace(const ModelKey& model, std::span<const Finding> findings,
                       std::span<const CheckRecord> checks) {
  PRESUM_TRY(state_->begin());
  PRESUM_TRY(state_->remove(kFindingTable.name, model));
  PRESUM_TRY(state_->remove(kCheckTable.name, model));
  PRESUM_ASSIGN(auto rows, insertion(state_->db(), kFindingTable));
  std::uint32_t id = 0;
  for (const Finding& f : findings) {
    FindingRow row{f, id++};
    row.model = model;
    PRESUM_TRY(rows.run(row));
  }
  PRESUM_ASSIGN(auto states, insertion(state_->db(), kCheckTable));
  std::uint32_t position = 0;
  for (const CheckRecord& c : checks) PRESUM_TRY(states.run({{model, c}, position++}));
  return {};
}

Status Writer::save_detector(std::uint32_t model_index, std::uint32_t dp_group,
                             std::string_view state) {
  PRESUM_TRY(state_->begin());
  return insert(state_->db(), kDetectorTable,
                {model_index, dp_group, segment(), std::vector<char>(state.begin(), state.end())},
                "INSERT OR REPLACE");
}

Status Writer::add(const Continuation& continuation) {
  PRESUM_TRY(state_->begin());
  return insert(state_->db(), kContinuationTable, continuation, "INSERT OR REPLACE");
}

Result<std::optional<SavedDetector>> Writer::saved_detector(std::uint32_t model_index,
                                                            std::uint32_t dp_group) {
  PRESUM_ASSIGN(auto rows,
                selection(state_->db(), kDetectorTable, "WHERE model_index=? AND dp_group=?"));
  PRESUM_ASSIGN(const auto row, rows.with(model_index, dp_group).next());
  if (!row) return std::optional<SavedDetector>();
  return std::optional(SavedDetector{row->segment, {row->state.begin(), row->state.end()}});
}

Status Writer::preflight(int exit_code) {
  PRESUM_TRY(state_->begin());
  return state_->change_segment(
      [&](SegmentRow& row) { row.preflight_exit_code = static_cast<std::uint32_t>(exit_code); });
}

Status Writer::count(const PacketCounts& packets) {
  PRESUM_TRY(state_->begin());
  return state_->change_segment([&](SegmentRow& row) { row.packets = packets; });
}

Status Writer::mark_incomplete(std::string_view why) {
  PRESUM_TRY(state_->begin());
  if (!state_->segment.incomplete.empty()) return {};
  return state_->change_segment([&](SegmentRow& row) {
    row.incomplete = why;
    row.incomplete_after = state_->written_step;
  });
}

bool Writer::is_due() const {
  return state_->in_transaction && state_->clock() - state_->began >= kCommitEvery;
}

Status Writer::tick() { return is_due() ? state_->commit() : Status(); }

Status Writer::commit() { return state_->commit(); }

std::optional<std::uint64_t> Writer::committed_step() const { return state_->committed_step; }

Status Writer::close() {
  if (state_->closed) return {};
  auto s = state_->commit();
  if (s) s = state_->file.check(state_->last_committed);
  if (s) s = state_->change_segment([](SegmentRow& row) { row.closed = true; });
  if (!s) {
    abandon(s.error().message);
    return s;
  }
  state_->closed = true;
  leave_one_file(state_->db());
  state_->release();
  return state_->file.copy_back();
}

void Writer::abandon(std::string_view why) {
  if (state_->closed) return;
  // Any of these calls may fail, for the same reason as the error that led here.
  static_cast<void>(state_->commit());
  if (!state_->file.is_gone() && mark_incomplete(why)) static_cast<void>(state_->commit());
  state_->closed = true;
  state_->release();
  static_cast<void>(state_->file.copy_back());
}

Result<Writer> open_writer(const std::filesystem::path& run, const MonotonicClock& clock) {
  std::error_code error;
  std::filesystem::create_directories(run, error);
  // Without the project's salt, this run's samples cannot be compared with those of other runs.
  const std::uint64_t salt = project_salt(run).value_or(random_salt());
  const Journal journal = choose_journal(run);
  auto writer = Writer::open(run, clock, journal, salt);
  if (writer || journal == Journal::kWal || writer.error().code != ErrorCode::kIo) return writer;
  return Writer::open(run, clock, Journal::kLocalCopy, salt);
}

}  // namespace presum::runlog
