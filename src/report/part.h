// SPDX-License-Identifier: Apache-2.0
// The data of one part of a run (one segment, module and shard): what the page draws.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "presum/run_log.h"
#include "report/axis.h"
#include "report/deviation.h"
#include "report/json.h"

namespace presum::report {

// More workers than this are counted, not drawn.
inline constexpr std::size_t kWorkersDrawn = 1024;

// Takes the steps of one part at once, then its workers and groups step by step in ascending
// order, so that a long run is never in memory as a whole. One thread at a time.
class Part {
 public:
  // REQUIRES: steps is not empty, all of one part, ascending, and outlives this object.
  Part(std::span<const StepRecord> steps, std::vector<GroupInfo> groups, std::size_t cells_max);

  bool holds(const StepKey& key) const;
  void add_workers(const StepKey& key, std::span<const WorkerRecord> workers);
  void add_groups(const StepKey& key, std::span<const GroupRecord> groups);
  // The steps whose cosine matrix the page shows, ascending: the first, the last, those that stand
  // out in one of the metrics, and others at equal distances.
  std::vector<StepKey> matrix_steps() const;
  // `pairs` is RunLog::cosines of a step of matrix_steps().
  void add_matrix(const StepKey& key, std::span<const float> pairs);

  Json json() const;

 private:
  static constexpr std::size_t kMetrics = 3;  // loss, gradient norm, cosine to the others

  struct Worker {
    bool seen = false;
    std::uint32_t rank = 0;
    std::uint64_t steps = 0;
    std::array<double, kMetrics> sums{};
    std::array<std::uint64_t, kMetrics> counts{};
    std::array<double, kMetrics> furthest{};  // the deviation of largest size
    std::uint64_t tokens = 0;
    std::uint64_t nonfinite_steps = 0;
    std::uint64_t zero_steps = 0;
    std::uint64_t dropped = 0;
    std::vector<Column> lines;           // one per metric
    std::vector<std::vector<int>> heat;  // one per metric: tenths of a deviation, or a mark
  };
  struct Group {
    GroupInfo info;
    double norm_sum = 0, cv_sum = 0;
    std::uint64_t count = 0, cv_count = 0, nonfinite = 0;
    std::vector<Column> lines;  // norm mean, norm standard deviation
  };

  void add_steps();
  void heat(Worker& worker, std::size_t metric, std::size_t bucket, double deviation, int mark);
  std::vector<std::uint32_t> present_at(const StepKey& key) const;
  Json series_json() const;
  Json workers_json() const;
  Json groups_json() const;
  Json summary_json() const;
  Json coverage_json() const;

  std::span<const StepRecord> steps_;
  std::size_t workers_expected_ = 0;
  StepAxis axis_;
  std::vector<Worker> workers_;  // by replica
  std::vector<Group> groups_;
  std::map<std::uint64_t, std::size_t> group_at_;
  std::map<std::string, Column> series_;
  std::vector<std::uint64_t> missing_;  // per bucket: most workers missing in one step
  std::array<Deviation, kMetrics> deviations_;
  std::array<std::uint64_t, kMetrics> measured_{};  // steps that hold a value of the metric
  std::map<std::uint64_t, std::vector<std::uint32_t>> present_;  // replicas, at matrix steps
  Json matrices_ = Json::array();
};

}  // namespace presum::report
