// SPDX-License-Identifier: Apache-2.0
// One step as rules see it, and helpers to report what they saw.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checks/engine/averaging.h"
#include "checks/engine/batches.h"
#include "checks/engine/draws.h"
#include "checks/engine/late_passes.h"
#include "checks/engine/layer_groups.h"
#include "checks/engine/passes.h"
#include "checks/engine/per_worker.h"
#include "checks/engine/roster.h"
#include "checks/engine/signal_log.h"
#include "checks/engine/streak.h"
#include "detect/detector.h"
#include "detect/slow_workers.h"
#include "presum/step_record.h"

namespace presum::checks {

inline constexpr const char* kSeesNoProgram =
    "Ranks of a C++ program report gradients and losses, but not the passes of their models.";

struct StepContext {
  const StepRecord& record;
  std::span<const Batch> batches;  // in the order of record.workers
  const detect::StepAlarms& alarms;
  const detect::TimeAlarms& times;
  const Roster& roster;
  const Draws& draws;
  const Averaging& averaging;
  const LatePasses& late;
  const LayerGroups& layer_groups;

  std::size_t workers() const { return record.workers.size(); }
  bool complete() const { return workers() == record.workers_expected; }
  bool alone() const { return record.workers.size() < 2; }
};

// The ranks for which `is_so` holds; everyone if it holds for all. Calls it once for each rank, in
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

// All ranks, as one Blame.
inline Blame of_all(const StepRecord& record) {
  Blame out{{}, true};
  for (const WorkerRecord& w : record.workers) insert(out.ranks, w.rank);
  return out;
}

inline constexpr const char* kOneWorker = "There is only one rank, so there is nothing to compare.";

inline Ranks all_ranks(const StepRecord& record) { return of_all(record).ranks; }

// REQUIRES: the rank is in the record.
inline const WorkerRecord& worker_of(const StepRecord& record, std::uint32_t rank) {
  return *std::ranges::find(record.workers, rank, &WorkerRecord::rank);
}

// Whether the norm is known, finite and above zero.
inline bool has_gradient(const WorkerRecord& worker) {
  return std::isfinite(worker.grad_norm) && worker.grad_norm > 0;
}

// Looks at every step of one model for one or more checks, and keeps the state that it needs.
class Rule {
 public:
  virtual ~Rule() = default;
  virtual void update(const StepContext& context, SignalLog& log) = 0;
  // All readers of a pass over a dataset have left it.
  virtual void pass_over(const Pass& /*pass*/, const Roster& /*roster*/, SignalLog& /*log*/) {}
  // A rank has left. Its last steps may arrive later.
  virtual void farewell(std::uint32_t /*rank*/, const FinalState& /*last*/,
                        const Roster& /*roster*/, SignalLog& /*log*/) {}
  // Ranks send signs of life, and so will report how they end.
  virtual void beats() {}
};

}  // namespace presum::checks
