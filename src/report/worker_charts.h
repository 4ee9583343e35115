// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "presum/step_record.h"
#include "report/axis.h"
#include "report/deviation.h"
#include "report/json.h"

namespace presum::report {

// The most ranks that are drawn; further ranks are only counted.
inline constexpr std::size_t kWorkersDrawn = 1024;

// Lines, heat maps and table rows for the ranks of one model in one segment. Steps must be added in
// ascending order. One thread at a time.
class WorkerCharts {
 public:
  // Numbers per rank and bucket: two rows of each metric's line and one heat cell.
  static constexpr std::size_t kColumns = 9;

  WorkerCharts(const StepAxis& axis, std::size_t workers);
  void add(std::size_t bucket, std::span<const WorkerRecord> workers);

  std::size_t seen() const;                                  // of the ranks that are drawn
  std::uint64_t loss_steps() const { return measured_[0]; }  // steps with a loss
  Json json() const;

 private:
  // Loss, gradient norm, cosine to the others, token weight.
  static constexpr std::size_t kMetrics = 4;
  using Values = std::array<std::vector<double>, kMetrics>;  // at one step, by metric and rank

  struct Worker {
    bool seen = false;
    std::uint32_t rank = 0;
    std::uint64_t steps = 0;
    std::array<double, kMetrics> sums{};
    std::array<std::uint64_t, kMetrics> counts{};
    std::array<double, kMetrics> furthest{};  // the deviation with the largest magnitude
    std::uint64_t nonfinite_steps = 0;
    std::uint64_t dropped = 0;
    std::vector<Column> lines;           // one per metric
    std::vector<std::vector<int>> heat;  // one per metric: tenths of a deviation, or a mark
  };

  void add_worker(std::size_t bucket, const WorkerRecord& record, std::size_t index,
                  const Values& values, const Values& deviations);
  static void add_heat(Worker& worker, std::size_t metric, std::size_t bucket, double deviation,
                       int mark);

  std::vector<Worker> workers_;  // by replica
  std::array<Deviation, kMetrics> deviations_;
  std::array<std::uint64_t, kMetrics> measured_{};  // steps with a value of the metric
};

}  // namespace presum::report
