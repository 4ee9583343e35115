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

// How the ranks of one model in one segment spent their time, and the cost of waiting. Steps must
// be added in ascending order. One thread at a time.
class TimeCharts {
 public:
  // Numbers per rank and bucket: two rows of the line of the rank's own time.
  static constexpr std::size_t kColumns = 2;

  TimeCharts(const StepAxis& axis, std::size_t workers);
  void add(std::size_t bucket, std::span<const WorkerRecord> workers);
  // Null if no time is known.
  Json json() const;

 private:
  struct Worker {
    std::uint64_t steps = 0;  // steps whose times are known
    std::array<double, kPhaseCount> seconds{};
    Column own;  // in milliseconds
  };

  std::vector<Worker> workers_;  // by replica
  std::uint64_t steps_ = 0;      // steps at which the times of any rank are known
  double total_ = 0;             // seconds, over all ranks
  double waited_ =
      // Seconds of these that ranks waited in reductions, beyond the rank that waited least in the
      // step.
      0;
};

}  // namespace presum::report
