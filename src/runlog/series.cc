// SPDX-License-Identifier: Apache-2.0
// Reading what belongs to steps: workers, groups, cosines.
#include <utility>

#include "base/try.h"
#include "runlog/run_log_state.h"

namespace presum {
namespace {

using runlog::ColumnSet;
using runlog::Database;
using runlog::GroupStepRow;
using runlog::key_of;
using runlog::kStepOrder;
using runlog::Selection;
using runlog::StepRow;
using runlog::Table;
using runlog::WorkerStepRow;

// Calls `visit` with the rows of each step that has any.
template <class Record, class Row, class Visit>
Status for_each_step(Database& db, const Table<Row>& table, std::string_view rest, Visit&& visit) {
  PRESUM_ASSIGN(auto steps, Selection<StepRow>::prepare(db, runlog::step_table(), kStepOrder,
                                                        ColumnSet::kWithoutBlobs));
  PRESUM_ASSIGN(auto rows, (Selection<Row>::prepare(db, table, rest, ColumnSet::kWithoutBlobs)));
  while (true) {
    PRESUM_ASSIGN(const auto step, steps.next());
    if (!step) return {};
    std::vector<Record> records;
    rows.with(step->id);
    PRESUM_TRY(rows.each([&](Row&& row) { records.push_back(std::move(row)); }));
    if (!records.empty()) visit(key_of(*step), records);
  }
}

}  // namespace

Status RunLog::for_each_workers(const WorkersVisitor& visit) const {
  return for_each_step<WorkerRecord>(state_->db, runlog::worker_step_table(),
                                     "WHERE step_id=? ORDER BY replica", visit);
}

Status RunLog::for_each_groups(const GroupsVisitor& visit) const {
  return for_each_step<GroupRecord>(state_->db, runlog::group_step_table(),
                                    "WHERE step_id=? ORDER BY group_id", visit);
}

Result<std::vector<float>> RunLog::cosines(const StepKey& step) const {
  PRESUM_ASSIGN(auto rows,
                Selection<StepRow>::prepare(state_->db, runlog::step_table(),
                                            "WHERE segment=? AND module=? AND shard=? AND step=?"));
  rows.with(step.model.segment, step.model.module, step.model.shard, step.step);
  PRESUM_ASSIGN(auto row, rows.next());
  return row ? std::move(row->cosines) : std::vector<float>();
}

}  // namespace presum
