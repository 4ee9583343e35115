// SPDX-License-Identifier: Apache-2.0
// Reading a RUN: a folder that holds presum.db (docs/runlog_format.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
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

// A message of a worker about the collection of its packets: what went wrong there.
struct NoteRecord {
  std::uint32_t segment = 0;
  std::uint32_t rank = 0;
  std::string text;
};

// Packets that were not used, or used in part.
struct PacketCounts {
  std::uint64_t damaged = 0;    // not a packet
  std::uint64_t foreign = 0;    // of another run or segment
  std::uint64_t duplicate = 0;  // a worker's step that was already there
  std::uint64_t late = 0;       // of a step that was already closed
  bool operator==(const PacketCounts&) const = default;
};

struct SegmentInfo {
  std::uint32_t segment = 0;
  std::string started_utc;
  std::string presum_version;
  bool closed = false;  // false while it is written, and for ever if its process died
  std::optional<std::uint32_t> preflight_exit_code;  // none unless a preflight ended it
  std::string salt;  // names the salt; samples are comparable only between segments of one salt
  PacketCounts packets;
  // Why steps, or values of some workers, are missing after the step `incomplete_after` (none: from
  // the first on). Empty: nothing is known to be missing.
  std::string incomplete;
  std::optional<std::uint64_t> incomplete_after;
};

// "incomplete after step 29: the disk is full". REQUIRES: the segment is incomplete.
std::string incomplete_text(const SegmentInfo& segment);

struct GroupInfo : GroupName {
  ModelKey model;
  std::uint32_t position = 0;  // in the order of the model's parameters, or else by name
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

// A worker's audit of the reduction of a step.
struct AuditedStep {
  StepKey key;
  std::uint32_t replica = 0;
  AuditRecord audit;
};

// A column of a table: one value a row.
struct Series {
  std::string name;
  // Reals (NaN: not known); integers; 64-bit hashes (0: not known); or positions in `texts` (-1:
  // not known).
  std::variant<std::vector<double>, std::vector<float>, std::vector<std::int64_t>,
               std::vector<std::uint64_t>, std::vector<std::int32_t>>
      values;
  std::vector<std::string> texts;
  bool is_text = false;
};

// A column's documentation. The texts live for ever.
struct ColumnInfo {
  std::string_view name;
  std::string_view type;  // "integer", "real", "text" or "blob"
  std::string_view meaning;
  std::string_view unit;     // empty: none, or a count
  std::string_view unknown;  // the meaning of NULL; empty: it is never NULL
};

struct TableInfo {
  std::string_view name;
  std::string_view meaning;
  std::vector<ColumnInfo> columns;
};

// The tables of the file; and the views for people, which RunLog::visit_table and RunLog::frame
// read.
std::vector<TableInfo> stored_tables();
std::vector<TableInfo> shown_tables();

// Reads the steps of one model in one segment in order, with everything that was stored of them but
// cosines. A worker's fingerprints and audit are the latest that it reported up to that step.
// Holds one step in memory at a time. Lifetime: the RunLog outlives it. Thread-safety: one thread
// at a time, that of the RunLog.
class StepCursor {
 public:
  StepCursor(StepCursor&&) noexcept;
  StepCursor& operator=(StepCursor&&) noexcept;
  ~StepCursor();

  // The next step, which lives until the next call; null after the last one. Errors: kCorrupt, kIo.
  Result<const StepRecord*> next();

 private:
  friend class RunLog;
  struct State;
  explicit StepCursor(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// How a model began in a segment that continues a run.
struct Continuation {
  ModelKey model;
  // Whose parameters, and at which step to come, it goes on from; none: from none that are known.
  std::optional<std::uint32_t> from_segment;
  std::optional<std::uint64_t> from_step;
  std::uint64_t steps_before = 0;  // of its training up to there; steps done again count once
  // Of these, those that its detectors know; 0: they began anew, for the reason given.
  std::uint64_t detector_steps = 0;
  std::string reason;
};

// How many steps the log has of a model in a segment.
struct StepCount {
  ModelKey model;
  std::uint64_t steps = 0;
  std::uint64_t end = 0;  // one past the last
};

// A stall of a segment, with what its ranks said.
struct StallRecord : Stall {
  std::uint32_t segment = 0;
};

// An open run log. Reads while a writer writes. Thread-safety: one thread at a time.
class RunLog {
 public:
  // `run` is the folder or the file. Errors: kNotFound (no such run), kCorrupt (not a presum
  // database, or damaged), kUnsupported (made by another version).
  static Result<RunLog> open(const std::filesystem::path& run);
  RunLog(RunLog&&) noexcept;
  RunLog& operator=(RunLog&&) noexcept;
  ~RunLog();

  // The folder's name.
  std::string name() const;
  // Per-step values without workers, groups and cosines, ascending by segment, model_index,
  // dp_group and step.
  Result<std::vector<StepRecord>> steps() const;
  // The models of the last segment in which a worker said hello.
  Result<std::vector<ModelInfo>> modules() const;
  Result<std::vector<Fact>> facts() const;
  Result<std::vector<NoteRecord>> notes() const;
  // As of the last commit, worst first.
  Result<std::vector<Finding>> findings() const;
  // Every check of every model and segment that was judged.
  struct Check {
    ModelKey model;
    CheckRecord record;
  };
  Result<std::vector<Check>> checks() const;
  Result<std::vector<SegmentInfo>> segments() const;
  Result<std::vector<GroupInfo>> groups() const;

  // By segment, model_index and dp_group, and so are the next. Of models whose steps have begun to
  // be judged.
  Result<std::vector<Continuation>> continuations() const;
  Result<std::vector<StepCount>> step_counts() const;
  // How many steps of a model are before this one.
  Result<std::uint64_t> steps_before(const StepKey& step) const;
  // By segment, model_index, dp_group and replica.
  Result<std::vector<FinalStateRecord>> final_states() const;
  // By segment, model_index, dp_group, replica, kind and step.
  Result<std::vector<SnapshotRecord>> snapshots() const;
  // By segment, model_index, dp_group, step and replica.
  Result<std::vector<AuditedStep>> audits() const;
  // When the job stood still, by segment and number, with what each rank said.
  Result<std::vector<StallRecord>> stalls() const;
  // The steps from `from_step` on, ascending.
  Result<StepCursor> cursor(const ModelKey& model, std::uint64_t from_step = 0) const;

  // Calls `visit` for every step that has workers, in the order of steps(), with those whose
  // packets arrived, by replica. They hold numbers only: `micro`, `states`, `samples.hashes`,
  // `indices`, `fingerprints` and `audit` are empty; cursor() reads these. Holds one step in memory
  // at a time.
  using WorkersVisitor = std::function<void(const StepKey&, std::span<const WorkerRecord>)>;
  Status for_each_workers(const WorkersVisitor& visit) const;
  // Likewise with a step's groups, by id; `norms`, `maxima` and `fingerprints` are empty.
  using GroupsVisitor = std::function<void(const StepKey&, std::span<const GroupRecord>)>;
  Status for_each_groups(const GroupsVisitor& visit) const;
  // Reads one of shown_tables(). Calls `visit` once without cells, then once for every row.
  // std::monostate stands for NULL (undefined, not measured). Error: kInvalidArgument
  // (another name).
  using Cell = std::variant<std::monostate, std::int64_t, double, std::string>;
  using RowVisitor =
      std::function<void(std::span<const std::string> columns, std::span<const Cell> cells)>;
  Status visit_table(std::string_view table, const RowVisitor& visit) const;
  // The same table as arrays, for large ones. Error: kInvalidArgument (another name).
  Result<std::vector<Series>> frame(std::string_view table) const;
  // One row a step, group and worker: step, segment, model_index, dp_group, group, rank, grad_norm,
  // grad_max.
  Result<std::vector<Series>> group_norms() const;
  // One step's StepRecord::cosines, between the workers whose packets arrived. Empty if the step,
  // or its matrix, was not stored.
  Result<std::vector<float>> cosines(const StepKey& step) const;

 private:
  struct State;
  explicit RunLog(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace presum
