// SPDX-License-Identifier: Apache-2.0
// Reads whole steps, one after another.
#include <map>
#include <optional>
#include <utility>

#include "base/try.h"
#include "runlog/run_log_state.h"

namespace presum {

using runlog::FingerprintRow;
using runlog::GroupStepRow;
using runlog::MissingRow;
using runlog::Selection;
using runlog::StepRow;
using runlog::WorkerStepRow;

namespace {

// A model's rows in the order of their steps, read up to a given step.
template <class Row>
class RowsByStep {
 public:
  static Result<RowsByStep> open(Selection<Row> rows) {
    RowsByStep out(std::move(rows));
    PRESUM_TRY(out.advance());
    return out;
  }
  template <class Step, class Take>
  Status take_until(std::uint64_t last, Step&& step_of, Take&& take) {
    while (next_ && step_of(*next_) <= last) {
      take(std::move(*next_));
      PRESUM_TRY(advance());
    }
    return {};
  }

 private:
  explicit RowsByStep(Selection<Row> rows) : rows_(std::move(rows)) {}
  Status advance() {
    PRESUM_ASSIGN(next_, rows_.next());
    return {};
  }
  Selection<Row> rows_;
  std::optional<Row> next_;
};

template <class Row>
Result<RowsByStep<Row>> rows_by_step(runlog::Database& db, const runlog::Table<Row>& table,
                                     const ModelKey& model) {
  PRESUM_ASSIGN(
      auto rows,
      selection(db, table, "WHERE segment=? AND model_index=? AND dp_group=? ORDER BY step"));
  rows.with(model.segment, model.model_index, model.dp_group);
  return RowsByStep<Row>::open(std::move(rows));
}

void set_value(std::vector<FingerprintValue>& values, const FingerprintValue& value) {
  for (FingerprintValue& f : values) {
    if (f.kind != value.kind) continue;
    f = value;
    return;
  }
  values.push_back(value);
}

}  // namespace

struct StepCursor::State {
  Selection<StepRow> steps;
  Selection<WorkerStepRow> workers;
  Selection<GroupStepRow> groups;
  Selection<MissingRow> missing;
  RowsByStep<FingerprintRow> fingerprints;
  RowsByStep<AuditedStep> audits;
  // The last values that each rank reported, by replica.
  std::map<std::uint32_t, std::vector<FingerprintValue>> values = {};
  std::map<std::uint32_t, AuditRecord> audited = {};
  StepRecord record = {};

  Status take_last_told() {
    PRESUM_TRY(fingerprints.take_until(
        record.step, [](const FingerprintRow& row) { return row.step; },
        [&](const FingerprintRow& row) { set_value(values[row.replica], row.value); }));
    return audits.take_until(
        record.step, [](const AuditedStep& row) { return row.key.step; },
        [&](const AuditedStep& row) { audited[row.replica] = row.audit; });
  }

  void add(WorkerStepRow&& row) {
    if (row.shares_states && !record.workers.empty()) row.states = record.workers.front().states;
    row.fingerprints = values[row.replica];
    if (const auto at = audited.find(row.replica); at != audited.end()) row.audit = at->second;
    record.workers.push_back(std::move(row));
  }

  Status fill(std::uint64_t id) {
    PRESUM_TRY(take_last_told());
    workers.with(id);
    PRESUM_TRY(workers.each([&](WorkerStepRow&& row) { add(std::move(row)); }));
    groups.with(id);
    PRESUM_TRY(groups.each([&](GroupStepRow&& row) { record.groups.push_back(std::move(row)); }));
    missing.with(id);
    return missing.each(
        [&](const MissingRow& row) { record.missing_replicas.push_back(row.replica); });
  }
};

StepCursor::StepCursor(std::unique_ptr<State> state) : state_(std::move(state)) {}
StepCursor::StepCursor(StepCursor&&) noexcept = default;
StepCursor& StepCursor::operator=(StepCursor&&) noexcept = default;
StepCursor::~StepCursor() = default;

Result<const StepRecord*> StepCursor::next() {
  PRESUM_ASSIGN(auto row, state_->steps.next());
  if (!row) return nullptr;
  const std::uint64_t id = row->id;
  state_->record = std::move(*row);
  state_->record.cosines.clear();
  PRESUM_TRY(state_->fill(id));
  return &state_->record;
}

Result<StepCursor> RunLog::cursor(const ModelKey& model, std::uint64_t from_step) const {
  auto& db = state_->db;
  PRESUM_ASSIGN(
      auto steps,
      selection(db, runlog::kStepTable,
                "WHERE segment=? AND model_index=? AND dp_group=? AND step>=? ORDER BY step",
                without_blobs(runlog::kStepTable)));
  PRESUM_ASSIGN(auto workers,
                selection(db, runlog::kWorkerStepTable, "WHERE step_id=? ORDER BY replica"));
  PRESUM_ASSIGN(auto groups,
                selection(db, runlog::kGroupStepTable, "WHERE step_id=? ORDER BY group_id"));
  PRESUM_ASSIGN(auto missing,
                selection(db, runlog::kMissingTable, "WHERE step_id=? ORDER BY replica"));
  PRESUM_ASSIGN(auto fingerprints, rows_by_step(db, runlog::kFingerprintTable, model));
  PRESUM_ASSIGN(auto audits, rows_by_step(db, runlog::kAuditTable, model));
  steps.with(model.segment, model.model_index, model.dp_group, from_step);
  return StepCursor(std::make_unique<StepCursor::State>(
      StepCursor::State{std::move(steps), std::move(workers), std::move(groups), std::move(missing),
                        std::move(fingerprints), std::move(audits)}));
}

}  // namespace presum
