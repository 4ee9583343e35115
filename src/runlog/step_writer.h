// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

#include "presum/step_record.h"
#include "runlog/column.h"
#include "runlog/keyed_hash.h"
#include "runlog/tables.h"

namespace presum::runlog {

// Second halves of KeyedHash keys: the purpose of a salt (docs/runlog_format.md).
inline constexpr std::uint64_t kSampleHashes = 1;
inline constexpr std::uint64_t kSaltNames = 2;

// Writes a step's rows to all tables. Salts row hashes. `db` must outlive this object. One thread
// at a time.
class StepWriter {
 public:
  static Result<StepWriter> prepare(Database& db, std::uint64_t salt);

  // Returns the step's id. After an error, some of its rows may have been written: use a savepoint.
  Result<std::uint64_t> write(StepRecord record);

 private:
  struct Tables {
    Insertion<StepRow> steps;
    Insertion<WorkerStepRow> workers;
    Insertion<GroupStepRow> groups;
    Insertion<MissingRow> missing;
    Insertion<FingerprintRow> fingerprints;
    Insertion<AuditedStep> audits;
  };
  StepWriter(Database& db, std::uint64_t salt, Tables into)
      : db_(&db), salted_(salt, kSampleHashes), into_(std::move(into)) {}

  Status write_worker(const StepRecord& step, std::uint64_t id, WorkerRecord worker);
  Status write_fingerprints(const StepRecord& step, const WorkerRecord& worker);

  Database* db_;
  KeyedHash salted_;
  Tables into_;
  using Key = std::tuple<ModelKey, std::uint32_t, std::uint32_t>;  // replica, kind
  std::map<Key, std::uint64_t> last_values_;
};

}  // namespace presum::runlog
