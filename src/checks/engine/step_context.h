// SPDX-License-Identifier: Apache-2.0
// One step as rules see it, and what they need to say what they saw.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checks/engine/batches.h"
#include "checks/engine/roster.h"
#include "checks/engine/signal_log.h"
#include "checks/engine/streak.h"
#include "detect/detector.h"
#include "detect/slow_workers.h"
#include "presum/step_record.h"

namespace presum::checks {

struct StepContext {
  const StepRecord& record;
  std::span<const Batch> batches;  // in the order of record.workers
  const detect::StepAlarms& alarms;
  const detect::TimeAlarms& times;
  const Roster& roster;

  std::size_t workers() const { return record.workers.size(); }
  bool complete() const { return workers() == record.workers_expected; }
  bool alone() const { return record.workers.size() < 2; }
};

// Those that something is so of; everyone where it is so of all. Asked once of each worker, in
// order.
template <class IsSo>
Blame blame_where(const StepContext& context, const IsSo& is_so) {
  Blame out;
  for (const WorkerRecord& w : context.record.workers) {
    if (is_so(w)) insert(out.ranks, w.rank);
  }
  out.everyone = out.ranks.size() == context.workers();
  return out;
}

inline Signal sighting(Check check, const StepContext& context, Blame blame, double confidence,
                       Evidence evidence) {
  return sighting(check, context.record.step, std::move(blame), confidence, std::move(evidence));
}

// All of them, as one.
inline Blame of_all(const StepRecord& record) {
  Blame out{{}, true};
  for (const WorkerRecord& w : record.workers) insert(out.ranks, w.rank);
  return out;
}

inline constexpr const char* kOneWorker = "One worker: there is nothing to compare.";

inline Ranks all_ranks(const StepRecord& record) { return of_all(record).ranks; }

// REQUIRES: it is in the record.
inline const WorkerRecord& worker_of(const StepRecord& record, std::uint32_t rank) {
  return *std::ranges::find(record.workers, rank, &WorkerRecord::rank);
}

// Whether a norm is known to be finite and above zero.
inline bool has_gradient(const WorkerRecord& worker) {
  return std::isfinite(worker.grad_norm) && worker.grad_norm > 0;
}

// Something remembered of each worker, by replica. At most 65,536; then it begins anew.
template <typename T>
class PerWorker {
 public:
  T& operator[](std::uint32_t replica) {
    if (map_.size() >= 65536 && !map_.contains(replica)) map_.clear();
    return map_[replica];
  }
  const T* find(std::uint32_t replica) const {
    const auto found = map_.find(replica);
    return found == map_.end() ? nullptr : &found->second;
  }
  void clear() { map_.clear(); }

 private:
  std::unordered_map<std::uint32_t, T> map_;
};

// Looks at every step of one model for a check or more, and keeps what it needs.
class Rule {
 public:
  virtual ~Rule() = default;
  virtual void update(const StepContext& context, SignalLog& log) = 0;
  // A worker has left. Its last steps may be yet to come.
  virtual void farewell(std::uint32_t /*rank*/, const FinalState& /*last*/,
                        const Roster& /*roster*/, SignalLog& /*log*/) {}
  // Ranks tell where they stand, and so how they end.
  virtual void beats() {}
};

}  // namespace presum::checks
