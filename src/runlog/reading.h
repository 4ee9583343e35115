// SPDX-License-Identifier: Apache-2.0
// What the parts of RunLog share.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/try.h"
#include "presum/run_log.h"
#include "runlog/sqlite.h"

namespace presum {

struct RunLog::State {
  std::filesystem::path file;
  mutable runlog::Database db;
};

namespace runlog {

// Columns of the table `step`, whose last one is its id, and the record that they hold.
inline constexpr std::string_view kStepColumns =
    "segment, module, shard, step, workers_expected, workers, loss_mean, loss_std, loss_range, "
    "grad_norm_mean, grad_norm_std, grad_norm_cv, cosine_mean, cosine_low, cosine_high, "
    "consistency, reduced_norm, signal, noise, noise_scale, effective_workers, tokens_cv, "
    "cosine_source, reduced_disagrees, distinct_gradients, sketch_size, mean_norm, "
    "mean_norm_error, id";
StepRecord read_step(const Statement& row);

// Columns of the table `worker_step` as `w`, and the record that they hold from `column` on.
inline constexpr std::string_view kWorkerColumns =
    "w.replica, w.rank, w.loss, w.loss_nonfinite, w.weight, w.tokens, w.micro_batches, "
    "w.grad_norm, w.grad_max, w.nonfinite, w.cosine_to_others, w.reduced_norm, w.fingerprint, "
    "w.reduced_fingerprint, w.optimizer_step, w.dropped, w.skipped_parameters";
inline constexpr int kWorkerColumnCount = 17;
WorkerRecord read_worker(const Statement& row, int column);

// Calls `read` for every row.
template <class Read>
Status for_each_row(Database& db, std::string_view sql, Read&& read) {
  PRESUM_ASSIGN(auto statement, db.prepare(sql));
  while (true) {
    PRESUM_ASSIGN(const auto row, statement.next());
    if (!row) return {};
    read(statement);
  }
}

template <class T, class Read>
Result<std::vector<T>> read_all(Database& db, std::string_view sql, Read&& read) {
  std::vector<T> out;
  const auto done = for_each_row(db, sql, [&](const Statement& row) { out.push_back(read(row)); });
  if (!done) return done.error();
  return out;
}

}  // namespace runlog
}  // namespace presum
