// SPDX-License-Identifier: Apache-2.0
// The page's charts of one model (a model and data-parallel group) in one segment of a run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "presum/run_log.h"
#include "report/axis.h"
#include "report/cosine_matrices.h"
#include "report/group_charts.h"
#include "report/json.h"
#include "report/time_charts.h"
#include "report/worker_charts.h"

namespace presum::report {

// Takes all steps of one model in one segment at once, then their ranks and groups step by step in
// ascending order, so that a long run is never in memory as a whole. One thread at a time.
class ModelCharts {
 public:
  // REQUIRES: steps is not empty, belongs to one model and segment, ascends, and outlives this
  // object. `findings`: the first steps of its findings, the worst finding first. `cells_max`: the
  // approximate number of values in its JSON.
  ModelCharts(std::span<const StepRecord> steps, std::vector<GroupInfo> groups,
              std::span<const std::uint64_t> findings, std::size_t cells_max);

  bool holds(const StepKey& key) const;
  // REQUIRES (both functions): the step is held.
  void add_workers(const StepKey& key, std::span<const WorkerRecord> workers);
  void add_groups(const StepKey& key, std::span<const GroupRecord> groups);
  CosineMatrices& matrices() { return matrices_; }
  const CosineMatrices& matrices() const { return matrices_; }

  Json json() const;

 private:
  Json series_json() const;
  Json summary_json() const;
  Json coverage_json() const;

  std::span<const StepRecord> steps_;
  std::size_t workers_expected_ = 0;
  StepAxis axis_;
  std::map<std::string, Column> series_;  // over all ranks
  std::vector<std::uint64_t> missing_;    // per bucket: most ranks missing at one step
  WorkerCharts workers_;
  TimeCharts times_;
  GroupCharts groups_;
  CosineMatrices matrices_;
};

}  // namespace presum::report
