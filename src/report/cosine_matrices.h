// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "presum/run_log.h"
#include "report/json.h"

namespace presum::report {

// The cosine matrices of a few steps of one model in one segment. One thread at a time.
class CosineMatrices {
 public:
  // REQUIRES: steps and findings as for ModelCharts. `workers`: the expected number of ranks.
  CosineMatrices(std::span<const StepRecord> steps, std::size_t workers,
                 std::span<const std::uint64_t> findings);

  // The steps whose matrix the page shows, ascending: the first, the last, those at which findings
  // begin (always that of the worst one), those that stand out in one of the metrics, and others at
  // equal distances.
  const std::vector<StepKey>& steps() const { return steps_; }
  // Adds the ranks seen at a step. Ignored for steps that are not in steps().
  void add_workers(std::uint64_t step, std::span<const WorkerRecord> workers);
  // `pairs`: the result of RunLog::cosines for one of steps(). REQUIRES: the step's ranks were
  // added.
  void add(const StepKey& key, std::span<const float> pairs);
  const Json& json() const { return matrices_; }

 private:
  std::vector<StepKey> steps_;
  std::map<std::uint64_t, std::vector<std::uint32_t>> replicas_;  // replicas seen at each of steps_
  Json matrices_ = Json::array();
};

}  // namespace presum::report
