// SPDX-License-Identifier: Apache-2.0
// Reading whole steps, one after the other.
#include <fmt/format.h>

#include <cstring>
#include <map>
#include <optional>

#include "base/try.h"

#include "runlog/reading.h"

namespace presum {
namespace {

using runlog::Statement;

template <class T>
std::vector<T> numbers(std::span<const std::byte> bytes) {
  std::vector<T> out(bytes.size() / sizeof(T));
  if (!out.empty()) std::memcpy(out.data(), bytes.data(), out.size() * sizeof(T));
  return out;
}

constexpr std::size_t kWordsOfState = 3;

std::vector<StateHash> states_of(std::span<const std::byte> bytes) {
  const auto words = numbers<std::uint64_t>(bytes);
  std::vector<StateHash> out;
  for (std::size_t at = 0; at + kWordsOfState <= words.size(); at += kWordsOfState) {
    out.push_back({words[at], static_cast<StateHash::Of>(words[at + 1]), words[at + 2]});
  }
  return out;
}

// A count that is stored as a double; 0 where a damaged one is none.
std::uint64_t count_of(double value) {
  return value >= 0 && value < 0x1p64 ? static_cast<std::uint64_t>(value) : 0;
}

std::vector<MicroBatchRecord> micro_batches_of(std::span<const std::byte> bytes) {
  constexpr std::size_t kNumbers = 3;
  const auto values = numbers<double>(bytes);
  std::vector<MicroBatchRecord> out;
  for (std::size_t at = 0; at + kNumbers <= values.size(); at += kNumbers) {
    out.push_back({values[at], values[at + 1], count_of(values[at + 2])});
  }
  return out;
}

// `first`: the step's first worker, whose states are those of one that has none of its own.
WorkerRecord whole_worker(const Statement& row, const WorkerRecord* first) {
  WorkerRecord w = runlog::read_worker(row, 0);
  int c = runlog::kWorkerColumnCount;
  w.micro = micro_batches_of(row.blob(c++));
  w.rows = row.integer(c++);
  w.thinned = row.small(c++);
  w.samples = numbers<std::uint64_t>(row.blob(c++));
  w.indices = numbers<std::uint64_t>(row.blob(c++));
  const bool shared = row.type(c) == SQLITE_NULL && first != nullptr;
  w.states = shared ? first->states : states_of(row.blob(c));
  return w;
}

GroupRecord whole_group(const Statement& row) {
  GroupRecord g{.id = row.integer(0), .norm_mean = row.number(1), .norm_std = row.number(2)};
  g.nonfinite = row.integer(3);
  g.norms = numbers<float>(row.blob(4));
  g.maxima = numbers<float>(row.blob(5));
  g.fingerprints = numbers<std::uint32_t>(row.blob(6));
  return g;
}

struct Change {
  std::uint64_t step = 0;
  std::uint32_t replica = 0;
  FingerprintValue value;
};

}  // namespace

struct StepCursor::State {
  Statement steps, workers, groups, missing;
  Statement changes;
  std::optional<Change> next_change;
  std::map<std::uint32_t, std::vector<FingerprintValue>> held;  // by replica
  StepRecord record;

  Status read_change() {
    next_change.reset();
    PRESUM_ASSIGN(const auto row, changes.next());
    if (row) {
      next_change = {changes.integer(0), changes.small(1), {changes.small(2), changes.integer(3)}};
    }
    return {};
  }

  void hold(const Change& change) {
    auto& values = held[change.replica];
    for (FingerprintValue& f : values) {
      if (f.kind != change.value.kind) continue;
      f = change.value;
      return;
    }
    values.push_back(change.value);
  }

  Status apply_changes() {
    while (next_change && next_change->step <= record.step) {
      hold(*next_change);
      PRESUM_TRY(read_change());
    }
    return {};
  }

  template <class Visit>
  static Status each(Statement& rows, std::uint64_t id, Visit&& visit) {
    rows.with(id);
    while (true) {
      PRESUM_ASSIGN(const auto row, rows.next());
      if (!row) return {};
      visit(rows);
    }
  }

  Status fill(std::uint64_t id) {
    PRESUM_TRY(apply_changes());
    auto s = each(workers, id, [&](const Statement& row) {
      record.workers.push_back(
          whole_worker(row, record.workers.empty() ? nullptr : &record.workers.front()));
      record.workers.back().fingerprints = held[record.workers.back().replica];
    });
    if (!s) return s;
    s = each(groups, id, [&](const Statement& row) { record.groups.push_back(whole_group(row)); });
    if (!s) return s;
    return each(missing, id,
                [&](const Statement& row) { record.missing_replicas.push_back(row.small(0)); });
  }
};

StepCursor::StepCursor(std::unique_ptr<State> state) : state_(std::move(state)) {}
StepCursor::StepCursor(StepCursor&&) noexcept = default;
StepCursor& StepCursor::operator=(StepCursor&&) noexcept = default;
StepCursor::~StepCursor() = default;

Result<const StepRecord*> StepCursor::next() {
  PRESUM_ASSIGN(const auto row, state_->steps.next());
  if (!row) return nullptr;
  const Statement& step = state_->steps;
  state_->record = runlog::read_step(step);
  PRESUM_TRY(state_->fill(step.integer(step.columns() - 1)));
  return &state_->record;
}

Result<StepCursor> RunLog::cursor(std::uint32_t segment, std::uint32_t module, std::uint32_t shard,
                                  std::uint64_t from_step) const {
  auto& db = state_->db;
  auto steps = db.prepare(fmt::format(
      "SELECT {} FROM step WHERE segment=? AND module=? AND shard=? AND step>=? ORDER BY step",
      runlog::kStepColumns));
  auto workers = db.prepare(
      fmt::format("SELECT {}, micro, rows, thinned, samples, indices, states FROM worker_step w "
                  "WHERE step_id=? ORDER BY replica",
                  runlog::kWorkerColumns));
  auto groups = db.prepare(
      "SELECT group_id, norm_mean, norm_std, nonfinite, norms, maxima, fingerprints "
      "FROM group_step WHERE step_id=? ORDER BY group_id");
  auto missing = db.prepare("SELECT replica FROM missing_worker WHERE step_id=? ORDER BY replica");
  auto changes = db.prepare(
      "SELECT step, replica, kind, value FROM fingerprint WHERE segment=? AND module=? AND shard=? "
      "ORDER BY step");
  for (const auto* statement : {&steps, &workers, &groups, &missing, &changes}) {
    if (!*statement) return statement->error();
  }
  steps->with(segment, module, shard, from_step);
  changes->with(segment, module, shard);
  auto state = std::make_unique<StepCursor::State>(StepCursor::State{std::move(*steps),
                                                                     std::move(*workers),
                                                                     std::move(*groups),
                                                                     std::move(*missing),
                                                                     std::move(*changes),
                                                                     {},
                                                                     {},
                                                                     {}});
  PRESUM_TRY(state->read_change());
  return StepCursor(std::move(state));
}

Result<std::vector<FinalState>> RunLog::final_states() const {
  return runlog::read_all<FinalState>(
      state_->db,
      "SELECT segment, module, shard, replica, optimizer_steps, states FROM final_state "
      "ORDER BY segment, module, shard, replica",
      [](const Statement& row) {
        return FinalState{row.small(0), row.small(1),   row.small(2),
                          row.small(3), row.integer(4), states_of(row.blob(5))};
      });
}

}  // namespace presum
