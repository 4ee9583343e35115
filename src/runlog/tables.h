// SPDX-License-Identifier: Apache-2.0
// The tables of a run log, each as one list of columns. Everything else that knows a column is made
// from these: statements, views, frames, docs/runlog_format.md.
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

// A worker that said hello.
struct WorkerRow {
  ModelKey model;
  std::uint32_t replica = 0;
  std::uint32_t replicas = 0;
  std::uint32_t rank = 0;
  std::string host;
};

struct StepRow : StepRecord {
  std::uint64_t id = 0;  // what other tables refer to; 0: the next one
};

struct WorkerStepRow : WorkerRecord {
  std::uint64_t step_id = 0;
  bool shares_states = false;  // they are those of the step's first worker
};

struct GroupStepRow : GroupRecord {
  std::uint64_t step_id = 0;
};

struct MissingRow {
  std::uint64_t step_id = 0;
  std::uint32_t replica = 0;
};

// From this step on the worker holds the value.
struct FingerprintRow {
  ModelKey model;
  std::uint32_t replica = 0;
  std::uint64_t step = 0;
  FingerprintValue value;
};

struct NoteRow : NoteRecord {
  std::uint64_t id = 0;  // 0: the next one
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
  std::uint32_t module = 0;
  std::uint32_t shard = 0;
  std::uint32_t segment = 0;
  std::vector<char> state;
};

// Every function returns the same table each time; it lives for ever. Safe from any thread.
const Table<SegmentRow>& segment_table();
const Table<WorkerRow>& worker_table();
const Table<Fact>& fact_table();
const Table<GroupInfo>& group_table();
const Table<StepRow>& step_table();
const Table<WorkerStepRow>& worker_step_table();
const Table<GroupStepRow>& group_step_table();
const Table<MissingRow>& missing_table();
const Table<NoteRow>& note_table();
const Table<FingerprintRow>& fingerprint_table();
const Table<AuditedStep>& audit_table();
const Table<FinalStateRecord>& final_state_table();
const Table<MomentRecord>& moment_table();
const Table<FindingRow>& finding_table();
const Table<CheckRow>& check_table();
const Table<DetectorRow>& detector_table();
const Table<Continuation>& continuation_table();
const Table<StallRecord>& stall_table();
const Table<StalledRankRow>& stalled_rank_table();

// Calls `visit` with each of them.
template <class Visit>
void each_table(Visit&& visit) {
  const auto each = [&](const auto&... tables) { (visit(tables), ...); };
  each(segment_table(), worker_table(), fact_table(), group_table(), step_table(),
       worker_step_table(), group_step_table(), missing_table(), fingerprint_table(), audit_table(),
       final_state_table(), moment_table(), finding_table(), check_table(), detector_table(),
       continuation_table(), stall_table(), stalled_rank_table(), note_table());
}

}  // namespace presum::runlog
