// SPDX-License-Identifier: Apache-2.0
// The tables of a run log, each as one list of columns. Everything else that knows a column is
// generated from them: statements, views, frames, docs/runlog_format.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "presum/run_log.h"
#include "runlog/column.h"

namespace presum::runlog {

struct SegmentRow : SegmentInfo {
  std::string run;  // 16 hexadecimal digits
};

// A rank that has sent a hello packet.
struct WorkerRow {
  ModelKey model;
  std::uint32_t replica = 0;
  std::uint32_t replicas = 0;
  std::uint32_t rank = 0;
  std::string host;
};

struct StepRow : StepRecord {
  std::uint64_t id = 0;  // what other tables refer to; 0: assign the next one
};

struct WorkerStepRow : WorkerRecord {
  std::uint64_t step_id = 0;
  bool shares_states = false;  // equal to the states of the step's first rank
};

struct GroupStepRow : GroupRecord {
  std::uint64_t step_id = 0;
};

struct MissingRow {
  std::uint64_t step_id = 0;
  std::uint32_t replica = 0;
};

// The rank holds the value from this step on.
struct FingerprintRow {
  ModelKey model;
  std::uint32_t replica = 0;
  std::uint64_t step = 0;
  FingerprintValue value;
};

struct FindingRow : Finding {
  std::uint32_t id = 0;
};

struct CheckRow : RunLog::Check {
  std::uint32_t position = 0;
};

struct StalledRankRow : StalledRank {
  std::uint32_t segment = 0;
  std::uint32_t number = 0;
};

struct DetectorRow {
  std::uint32_t model_index = 0;
  std::uint32_t dp_group = 0;
  std::uint32_t segment = 0;
  std::vector<char> state;
};

// Safe from any thread.
extern const Table<SegmentRow> kSegmentTable;
extern const Table<WorkerRow> kWorkerTable;
extern const Table<Fact> kFactTable;
extern const Table<GroupInfo> kGroupTable;
extern const Table<StepRow> kStepTable;
extern const Table<WorkerStepRow> kWorkerStepTable;
extern const Table<GroupStepRow> kGroupStepTable;
extern const Table<MissingRow> kMissingTable;
extern const Table<NoteRecord> kNoteTable;
extern const Table<FingerprintRow> kFingerprintTable;
extern const Table<AuditedStep> kAuditTable;
extern const Table<FinalStateRecord> kFinalStateTable;
extern const Table<SnapshotRecord> kSnapshotTable;
extern const Table<FindingRow> kFindingTable;
extern const Table<CheckRow> kCheckTable;
extern const Table<DetectorRow> kDetectorTable;
extern const Table<Continuation> kContinuationTable;
extern const Table<StallRecord> kStallTable;
extern const Table<StalledRankRow> kStalledRankTable;

// Calls `visit` with each table.
template <class Visit>
void each_table(Visit&& visit) {
  const auto each = [&](const auto&... tables) { (visit(tables), ...); };
  each(kSegmentTable, kWorkerTable, kFactTable, kGroupTable, kStepTable, kWorkerStepTable,
       kGroupStepTable, kMissingTable, kFingerprintTable, kAuditTable, kFinalStateTable,
       kSnapshotTable, kFindingTable, kCheckTable, kDetectorTable, kContinuationTable, kStallTable,
       kStalledRankTable, kNoteTable);
}

}  // namespace presum::runlog
