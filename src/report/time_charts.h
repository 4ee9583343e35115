// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "presum/step_record.h"
#include "report/axis.h"
#include "report/json.h"

namespace presum::report {

// Where the time of the workers of one model in one segment went, and what waiting cost. Takes
// steps in ascending order. One thread at a time.
class TimeCharts {
 public:
  // Numbers that a worker takes for every bucket: two rows of the line of its own time.
  static constexpr std::size_t kColumns = 2;

  TimeCharts(const StepAxis& axis, std::size_t workers);
  void add(std::size_t bucket, std::span<const WorkerRecord> workers);
  // Null where no time is known.
  Json json() const;

 private:
  struct Worker {
    std::uint64_t steps = 0;  // whose times are known
    std::array<double, kPhaseCount> seconds{};
    Column own;  // milliseconds
  };

  std::vector<Worker> workers_;  // by replica
  std::uint64_t steps_ = 0;      // in which a worker's times are known
  double total_ = 0;             // seconds of all workers
  double waited_ =
      0;  // and of these in reductions, beyond the worker that waited least in the step
};

}  // namespace presum::report
