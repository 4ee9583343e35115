// SPDX-License-Identifier: Apache-2.0
#include "runlog/step_writer.h"

#include <algorithm>
#include <utility>

#include "base/try.h"

namespace presum::runlog {
namespace {

constexpr std::size_t kValuesMax = std::size_t{1} << 20;  // ranks times kinds of fingerprints

auto words(const StateHash& s) { return std::tuple(s.group, s.kind_and_shard(), s.value); }

bool same_states(const std::vector<StateHash>& a, const std::vector<StateHash>& b) {
  return std::ranges::equal(a, b, {}, words, words);
}

bool is_of_samples(std::uint32_t kind) {
  return kind == static_cast<std::uint32_t>(FingerprintKind::kBatch) ||
         kind == static_cast<std::uint32_t>(FingerprintKind::kLabels);
}

}  // namespace

Result<StepWriter> StepWriter::prepare(Database& db, std::uint64_t salt) {
  PRESUM_ASSIGN(auto steps, insertion(db, kStepTable));
  PRESUM_ASSIGN(auto workers, insertion(db, kWorkerStepTable));
  PRESUM_ASSIGN(auto groups, insertion(db, kGroupStepTable));
  PRESUM_ASSIGN(auto missing, insertion(db, kMissingTable));
  PRESUM_ASSIGN(auto values, insertion(db, kFingerprintTable, "INSERT OR REPLACE"));
  PRESUM_ASSIGN(auto audits, insertion(db, kAuditTable, "INSERT OR REPLACE"));
  return StepWriter(db, salt,
                    {std::move(steps), std::move(workers), std::move(groups), std::move(missing),
                     std::move(values), std::move(audits)});
}

Result<std::uint64_t> StepWriter::write(StepRecord record) {
  record.workers_seen = static_cast<std::uint32_t>(record.workers.size());
  const StepRow row{std::move(record), {}};
  PRESUM_TRY(into_.steps.run(row));
  const std::uint64_t id = db_->last_row();
  for (const WorkerRecord& w : row.workers) PRESUM_TRY(write_worker(row, id, w));
  for (const GroupRecord& g : row.groups) PRESUM_TRY(into_.groups.run({g, id}));
  for (const std::uint32_t replica : row.missing_replicas)
    PRESUM_TRY(into_.missing.run({id, replica}));
  return id;
}

Status StepWriter::write_worker(const StepRecord& step, std::uint64_t id, WorkerRecord worker) {
  PRESUM_TRY(write_fingerprints(step, worker));
  if (worker.audit) {
    PRESUM_TRY(into_.audits.run({{step.model, step.step}, worker.replica, *worker.audit}));
  }
  const WorkerRecord& first = step.workers.front();
  const bool is_first = worker.replica == first.replica;
  const bool shares = is_first ? worker.states.empty() : same_states(worker.states, first.states);
  for (std::uint64_t& hash : worker.samples.hashes) hash = salted_(hash);
  return into_.workers.run({std::move(worker), id, shares});
}

// Writes a row only if a value changed.
Status StepWriter::write_fingerprints(const StepRecord& step, const WorkerRecord& worker) {
  for (FingerprintValue f : worker.fingerprints) {
    if (is_of_samples(f.kind)) f.value = salted_(f.value);
    const Key key{step.model, worker.replica, f.kind};
    if (last_values_.size() >= kValuesMax && !last_values_.contains(key)) continue;
    const auto [last, fresh] = last_values_.try_emplace(key, f.value);
    if (!fresh && last->second == f.value) continue;
    last->second = f.value;
    PRESUM_TRY(into_.fingerprints.run({step.model, worker.replica, step.step, f}));
  }
  return {};
}

}  // namespace presum::runlog
