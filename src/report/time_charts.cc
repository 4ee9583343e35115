// SPDX-License-Identifier: Apache-2.0
#include "report/time_charts.h"

#include <cmath>
#include <utility>

namespace presum::report {

TimeCharts::TimeCharts(const StepAxis& axis, std::size_t workers)
    : workers_(workers, Worker{.own = Column(axis)}) {}

void TimeCharts::add(std::size_t bucket, std::span<const WorkerRecord> workers) {
  const double least = least_waited(workers);
  steps_ += std::isfinite(least);
  for (const WorkerRecord& w : workers) {
    if (!w.times.known()) continue;
    total_ += w.times.total();
    waited_ += w.times.of(Phase::kReduction) - least;
    if (w.replica >= workers_.size()) continue;
    Worker& worker = workers_[w.replica];
    ++worker.steps;
    for (std::size_t p = 0; p < kPhaseCount; ++p) worker.seconds[p] += w.times.seconds[p];
    worker.own.add(bucket, 1000 * w.times.own());
  }
}

Json TimeCharts::json() const {
  if (steps_ == 0) return nullptr;
  Json workers = Json::array();
  for (const Worker& w : workers_) {
    Json mean = Json::object();
    for (std::size_t p = 0; p < kPhaseCount; ++p) {
      mean[to_string(static_cast<Phase>(p))] = number(ratio(w.seconds[p], w.steps), kTableDigits);
    }
    workers.push_back(
        {{"steps", w.steps}, {"mean", std::move(mean)}, {"own", numbers(w.own.rows())}});
  }
  return {{"steps", steps_},
          {"total", number(total_, kTableDigits)},
          {"waited", number(waited_, kTableDigits)},
          {"workers", std::move(workers)}};
}

}  // namespace presum::report
