// SPDX-License-Identifier: Apache-2.0
// Reading what belongs to a step: workers, groups, cosines.
#include <fmt/format.h>

#include <cstring>
#include <tuple>

#include "base/try.h"

#include "runlog/reading.h"

namespace presum {

WorkerRecord runlog::read_worker(const Statement& row, int column) {
  int c = column;
  WorkerRecord w;
  w.replica = row.small(c++);
  w.rank = row.small(c++);
  w.loss = row.number(c++);
  w.loss_nonfinite = row.small(c++) != 0;
  w.weight = row.number(c++);
  w.tokens = row.integer(c++);
  w.micro_batches = row.small(c++);
  w.grad_norm = row.number(c++);
  w.grad_max = row.number(c++);
  w.nonfinite = row.integer(c++);
  w.cosine_to_others = row.number(c++);
  w.reduced_norm = row.number(c++);
  w.fingerprint = row.integer(c++);
  w.reduced_fingerprint = row.integer(c++);
  w.optimizer_step = row.integer(c++);
  w.dropped = row.integer(c++);
  w.skipped_parameters = row.small(c++);
  return w;
}

namespace {

using runlog::Database;
using runlog::for_each_row;
using runlog::read_all;
using runlog::Statement;

constexpr int kKeyColumns = 4;

StepKey read_key(const Statement& row) {
  return {row.small(0), row.small(1), row.small(2), row.integer(3)};
}

bool same(const StepKey& a, const StepKey& b) {
  return std::tie(a.segment, a.module, a.shard, a.step) ==
         std::tie(b.segment, b.module, b.shard, b.step);
}

WorkerRecord read_keyed_worker(const Statement& row) {
  return runlog::read_worker(row, kKeyColumns);
}

GroupRecord read_group(const Statement& row) {
  int c = kKeyColumns;
  GroupRecord g;
  g.id = row.integer(c++);
  g.norm_mean = row.number(c++);
  g.norm_std = row.number(c++);
  g.nonfinite = row.integer(c++);
  return g;
}

SegmentInfo read_segment(const Statement& row) {
  SegmentInfo s{.segment = row.small(0),
                .started_utc = row.text(1),
                .presum_version = row.text(2),
                .closed = row.small(3) != 0,
                .salt = row.text(5),
                .packets = {row.integer(6), row.integer(7), row.integer(8), row.integer(9)},
                .incomplete = row.text(10)};
  if (row.type(4) != SQLITE_NULL) s.preflight_exit_code = row.small(4);
  if (row.type(11) != SQLITE_NULL) s.incomplete_after = row.integer(11);
  return s;
}

// Rows that begin with the same key become one call.
template <class T, class Read, class Visit>
Status by_step(Database& db, std::string_view sql, Read&& read, Visit&& visit) {
  StepKey key;
  std::vector<T> rows;
  auto done = for_each_row(db, sql, [&](const Statement& row) {
    const StepKey next = read_key(row);
    if (!rows.empty() && !same(key, next)) {
      visit(key, rows);
      rows.clear();
    }
    key = next;
    rows.push_back(read(row));
  });
  if (done && !rows.empty()) visit(key, rows);
  return done;
}

}  // namespace

std::string incomplete_text(const SegmentInfo& segment) {
  const auto since = segment.incomplete_after
                         ? fmt::format("after step {}", *segment.incomplete_after)
                         : std::string("from the first step on");
  return fmt::format("incomplete {}: {}", since, segment.incomplete);
}

Result<std::vector<SegmentInfo>> RunLog::segments() const {
  return read_all<SegmentInfo>(
      state_->db,
      "SELECT segment, started_utc, presum_version, closed, preflight_exit_code, salt, damaged, "
      "foreign_packets, duplicate, late, incomplete, incomplete_after FROM segment "
      "ORDER BY segment",
      read_segment);
}

Result<std::vector<GroupInfo>> RunLog::groups() const {
  return read_all<GroupInfo>(
      state_->db,
      "SELECT segment, module, shard, id, name, elements, position FROM group_name "
      "ORDER BY segment, module, shard, name",
      [](const Statement& row) {
        return GroupInfo{row.small(0), row.small(1),   row.small(2), row.integer(3),
                         row.text(4),  row.integer(5), row.small(6)};
      });
}

Status RunLog::for_each_workers(const WorkersVisitor& visit) const {
  return by_step<WorkerRecord>(
      state_->db,
      fmt::format("SELECT s.segment, s.module, s.shard, s.step, {} "
                  "FROM step s JOIN worker_step w ON w.step_id = s.id "
                  "ORDER BY s.segment, s.module, s.shard, s.step, w.replica",
                  runlog::kWorkerColumns),
      read_keyed_worker, visit);
}

Status RunLog::for_each_groups(const GroupsVisitor& visit) const {
  return by_step<GroupRecord>(
      state_->db,
      "SELECT s.segment, s.module, s.shard, s.step, g.group_id, g.norm_mean, g.norm_std, "
      "g.nonfinite FROM step s JOIN group_step g ON g.step_id = s.id "
      "ORDER BY s.segment, s.module, s.shard, s.step, g.group_id",
      read_group, visit);
}

Result<std::vector<float>> RunLog::cosines(const StepKey& step) const {
  PRESUM_ASSIGN(
      auto query,
      state_->db.prepare(
          "SELECT cosines FROM step WHERE segment = ? AND module = ? AND shard = ? AND step = ?"));
  query.with(step.segment, step.module, step.shard, step.step);
  PRESUM_ASSIGN(const auto row, query.next());
  std::vector<float> out;
  if (!row) return out;
  const auto bytes = query.blob(0);
  out.resize(bytes.size() / sizeof(float));
  if (!out.empty()) std::memcpy(out.data(), bytes.data(), out.size() * sizeof(float));
  return out;
}

}  // namespace presum
