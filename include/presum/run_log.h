// SPDX-License-Identifier: Apache-2.0
// Reads a RUN: a folder that contains presum.db (docs/runlog_format.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "presum/finding.h"
#include "presum/records.h"
#include "presum/stall.h"
#include "presum/status.h"
#include "presum/step_record.h"

namespace presum {

struct WorkerInfo {
  std::uint32_t rank = 0;
  std::uint32_t replica = 0;
  std::string host;
};

struct ModelInfo {
  ModelKey model;
  std::uint32_t workers_expected = 0;
  std::vector<WorkerInfo> workers;  // those whose hello arrived, by replica
};

struct Fact {
  std::uint32_t segment = 0;
  std::uint32_t rank = 0;
  std::string key;
  std::string value;
  std::uint32_t model_index = 0;
};

// A rank's message about a failure in the collection of its packets.
struct NoteRecord {
  std::uint32_t segment = 0;
  std::uint32_t rank = 0;
  std::string text;
};

// Packets that were not used, or only in part.
struct PacketCounts {
  std::uint64_t damaged = 0;    // not a packet
  std::uint64_t foreign = 0;    // from another run or segment
  std::uint64_t duplicate = 0;  // repeats a step of the same rank
  std::uint64_t late = 0;       // for a step that was already closed
  bool operator==(const PacketCounts&) const = default;
};

struct SegmentInfo {
  std::uint32_t segment = 0;
  std::string started_utc;
  std::string presum_version;
  bool closed = false;  // false while the log is being written, and permanently if its process died
  std::optional<std::uint32_t> preflight_exit_code;  // set if a preflight ended the segment
  // Identifies the salt. Sample hashes are comparable only between segments with the same salt.
  std::string salt;
  PacketCounts packets;
  // Why steps, or the values of some ranks, are missing after the step `incomplete_after` (none:
  // from the start). Empty: nothing is known to be missing.
  std::string incomplete;
  std::optional<std::uint64_t> incomplete_after;
};

// For example "incomplete after step 29: the disk is full". REQUIRES: the segment is incomplete.
std::string incomplete_text(const SegmentInfo& segment);

struct GroupInfo : GroupName {
  ModelKey model;
  // In the order of the model's parameters, or by name if that order is unknown.
  std::uint32_t position = 0;
};

struct StepKey {
  ModelKey model;
  std::uint64_t step = 0;
  auto operator<=>(const StepKey&) const = default;  // NOLINT(modernize-use-nullptr)
};

struct FinalStateRecord : FinalState {
  ModelKey model;
  std::uint32_t replica = 0;
};

// One rank's audit of a step's reduction.
struct AuditedStep {
  StepKey key;
  std::uint32_t replica = 0;
  AuditRecord audit;
};

// A column of a table: one value per row.
struct Series {
  std::string name;
  // One of: reals (NaN: unknown); integers; 64-bit hashes (0: unknown); indices into `texts` (-1:
  // unknown).
  std::variant<std::vector<double>, std::vector<float>, std::vector<std::int64_t>,
               std::vector<std::uint64_t>, std::vector<std::int32_t>>
      values;
  std::vector<std::string> texts;
  bool is_text = false;
};

// Documentation of a column. The strings have static lifetime.
struct ColumnInfo {
  std::string_view name;
  std::string_view type;  // "integer", "real", "text" or "blob"
  std::string_view meaning;
  std::string_view unit;     // empty: dimensionless, or a count
  std::string_view unknown;  // meaning of NULL; empty: the column is never NULL
};

struct TableInfo {
  std::string_view name;
  std::string_view meaning;
  std::vector<ColumnInfo> columns;
};

// The tables in the file, and the views for users that RunLog::visit_table and RunLog::frame read.
std::vector<TableInfo> stored_tables();
std::vector<TableInfo> shown_tables();

// Reads the steps of one model in one segment, in order, with all their stored values except the
// cosines. A rank's fingerprints and audit are the latest that it reported up to that step. Holds
// one step in memory at a time. Lifetime: the RunLog must outlive it. Thread-safety: one thread at
// a time, together with its RunLog.
class StepCursor {
 public:
  StepCursor(StepCursor&&) noexcept;
  StepCursor& operator=(StepCursor&&) noexcept;
  ~StepCursor();

  // Returns the next step, valid until the next call; null after the last step. Errors: kCorrupt,
  // kIo.
  Result<const StepRecord*> next();

 private:
  friend class RunLog;
  struct State;
  explicit StepCursor(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// How a model started in a segment that continues a run.
struct Continuation {
  ModelKey model;
  // The segment and next step whose parameters the model continues from; empty: from parameters
  // unknown to presum.
  std::optional<std::uint32_t> from_segment;
  std::optional<std::uint64_t> from_step;
  // Training steps before this segment. A step that was repeated counts once.
  std::uint64_t steps_before = 0;
  // How many of these steps the detectors keep; 0: the detectors started over, for `reason`.
  std::uint64_t detector_steps = 0;
  std::string reason;
};

// Number of steps that the log holds for a model in a segment.
struct StepCount {
  ModelKey model;
  std::uint64_t steps = 0;
  std::uint64_t end = 0;  // last step + 1
};

// Steps in the order in which they were written: those after the first `after`, up to number
// `up_to`.
struct StepRows {
  std::uint64_t after = 0;
  std::uint64_t up_to = std::numeric_limits<std::int64_t>::max();
};

// A stall of a segment, with what its ranks reported.
struct StallRecord : Stall {
  std::uint32_t segment = 0;
};

// An open run log. It can be read while a writer writes to it. Thread-safety: one thread at a time.
class RunLog {
 public:
  // `run` is the folder or the file. Errors: kNotFound (no such run), kCorrupt (not a presum
  // database, or damaged), kUnsupported (written by another version).
  static Result<RunLog> open(const std::filesystem::path& run);
  RunLog(RunLog&&) noexcept;
  RunLog& operator=(RunLog&&) noexcept;
  ~RunLog();

  // The name of the folder.
  std::string name() const;
  // Per-step values, without workers, groups and cosines; sorted by segment, model_index, dp_group
  // and step.
  Result<std::vector<StepRecord>> steps() const;
  // The last step of each model among the last 1,000 steps that were written, sorted as steps(),
  // with `workers` as for_each_workers() reads them and without `missing_replicas`. The cost does
  // not depend on the length of the run.
  Result<std::vector<StepRecord>> last_steps() const;
  // The models of the last segment in which a rank sent a hello.
  Result<std::vector<ModelInfo>> modules() const;
  Result<std::vector<Fact>> facts() const;
  Result<std::vector<NoteRecord>> notes() const;
  // The findings at the last commit, worst first.
  Result<std::vector<Finding>> findings() const;
  // Every check for every model and segment that was judged.
  struct Check {
    ModelKey model;
    CheckRecord record;
  };
  Result<std::vector<Check>> checks() const;
  Result<std::vector<SegmentInfo>> segments() const;
  Result<std::vector<GroupInfo>> groups() const;

  // Sorted by segment, model_index and dp_group; so is step_counts(). Contains the models with at
  // least one judged step.
  Result<std::vector<Continuation>> continuations() const;
  Result<std::vector<StepCount>> step_counts() const;
  // The number of steps of a model before this one.
  Result<std::uint64_t> steps_before(const StepKey& step) const;
  // Sorted by segment, model_index, dp_group and replica.
  Result<std::vector<FinalStateRecord>> final_states() const;
  // Sorted by segment, model_index, dp_group, replica, kind and step.
  Result<std::vector<SnapshotRecord>> snapshots() const;
  // Sorted by segment, model_index, dp_group, step and replica.
  Result<std::vector<AuditedStep>> audits() const;
  // The stalls of the job, by segment and number, with what each rank reported.
  Result<std::vector<StallRecord>> stalls() const;
  // Reads the steps from `from_step` on, ascending.
  Result<StepCursor> cursor(const ModelKey& model, std::uint64_t from_step = 0) const;

  // Calls `visit` for every step with workers, in the order of steps(). The records are those of
  // the ranks whose packets arrived, by replica. They contain numbers only: `micro`, `states`,
  // `samples.hashes`, `indices`, `fingerprints` and `audit` are empty; cursor() reads these. Holds
  // one step in memory at a time.
  using WorkersVisitor = std::function<void(const StepKey&, std::span<const WorkerRecord>)>;
  Status for_each_workers(const WorkersVisitor& visit) const;
  // The same for the groups of a step, by id; `norms`, `maxima` and `fingerprints` are empty.
  using GroupsVisitor = std::function<void(const StepKey&, std::span<const GroupRecord>)>;
  Status for_each_groups(const GroupsVisitor& visit) const;
  // Reads one of shown_tables(). Calls `visit` once without cells, then once per row.
  // std::monostate is NULL (undefined, or not measured). Error: kInvalidArgument (unknown table).
  using Cell = std::variant<std::monostate, std::int64_t, double, std::string>;
  using RowVisitor =
      std::function<void(std::span<const std::string> columns, std::span<const Cell> cells)>;
  Status visit_table(std::string_view table, const RowVisitor& visit) const;
  // Returns the same table as arrays; meant for large tables. `rows`: of the tables "steps",
  // "workers", "groups" and "missing" only the rows of these steps; other tables are whole. Error:
  // kInvalidArgument (unknown table).
  Result<std::vector<Series>> frame(std::string_view table, StepRows rows = {}) const;
  // The number of steps of all models and segments so far. They are numbered from 1 in the order in
  // which they were written.
  Result<std::uint64_t> steps_written() const;
  // One row per step, group and rank, with the columns step, segment, model_index, dp_group, group,
  // rank, grad_norm, grad_max.
  Result<std::vector<Series>> group_norms() const;
  // StepRecord::cosines of one step, between the ranks whose packets arrived. Empty if the step or
  // its matrix was not stored.
  Result<std::vector<float>> cosines(const StepKey& step) const;

 private:
  struct State;
  explicit RunLog(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace presum
