// SPDX-License-Identifier: Apache-2.0
#include "report/worker_charts.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

namespace presum::report {
namespace {

constexpr const char* kMetricNames[] = {"loss", "grad_norm", "cosine", "token_weight"};

// The page's marks in a heat map; larger than any deviation in tenths.
constexpr int kDeviationMax = 9'999;
constexpr int kMarkNone = 30'000;       // no packet from this rank in this bucket
constexpr int kMarkUndefined = 30'001;  // a packet, but no value
constexpr int kMarkNonfinite = 30'002;

int tenths(double deviation) {
  const double limit = kDeviationMax;
  return static_cast<int>(std::lround(std::clamp(deviation * 10, -limit, limit)));
}

// Of two heat cells, the one that a bucket shows.
int stronger(int a, int b) {
  const auto strength = [](int v) {
    if (v == kMarkNone) return -2;
    if (v == kMarkUndefined) return -1;
    return std::abs(v);
  };
  return strength(b) > strength(a) ? b : a;
}

}  // namespace

WorkerCharts::WorkerCharts(const StepAxis& axis, std::size_t workers) : workers_(workers) {
  for (Worker& w : workers_) {
    w.lines.assign(kMetrics, Column(axis));
    w.heat.assign(kMetrics, std::vector<int>(axis.buckets(), kMarkNone));
  }
}

void WorkerCharts::add(std::size_t bucket, std::span<const WorkerRecord> workers) {
  Values values;
  for (const WorkerRecord& w : workers) {
    values[0].push_back(w.loss);
    values[1].push_back(w.grad_norm);
    values[2].push_back(w.cosine_to_others);
    values[3].push_back(w.token_weight);
  }
  Values deviations;
  for (std::size_t m = 0; m < kMetrics; ++m) {
    deviations[m] = deviations_[m].step(values[m]);
    measured_[m] +=
        std::any_of(values[m].begin(), values[m].end(), [](double v) { return std::isfinite(v); });
  }
  for (std::size_t i = 0; i < workers.size(); ++i) {
    if (workers[i].replica < workers_.size()) {
      add_worker(bucket, workers[i], i, values, deviations);
    }
  }
}

void WorkerCharts::add_worker(std::size_t bucket, const WorkerRecord& record, std::size_t index,
                              const Values& values, const Values& deviations) {
  Worker& w = workers_[record.replica];
  w.seen = true;
  w.rank = record.rank;
  ++w.steps;
  w.dropped = record.dropped;
  w.nonfinite_steps += record.nonfinite > 0 || record.loss_nonfinite;
  const std::array<bool, kMetrics> broken = {record.loss_nonfinite, record.nonfinite > 0, false,
                                             false};
  for (std::size_t m = 0; m < kMetrics; ++m) {
    const double value = values[m][index];
    w.lines[m].add(bucket, value);
    if (std::isfinite(value)) {
      w.sums[m] += value;
      ++w.counts[m];
    }
    add_heat(w, m, bucket, deviations[m][index], broken[m] ? kMarkNonfinite : kMarkUndefined);
  }
}

void WorkerCharts::add_heat(Worker& worker, std::size_t metric, std::size_t bucket,
                            double deviation, int mark) {
  if (std::isfinite(deviation) && std::abs(deviation) > std::abs(worker.furthest[metric])) {
    worker.furthest[metric] = deviation;
  }
  int& cell = worker.heat[metric][bucket];
  cell = stronger(cell, std::isfinite(deviation) ? tenths(deviation) : mark);
}

std::size_t WorkerCharts::seen() const {
  return static_cast<std::size_t>(std::ranges::count_if(workers_, &Worker::seen));
}

Json WorkerCharts::json() const {
  Json out = Json::array();
  for (std::size_t replica = 0; replica < workers_.size(); ++replica) {
    const Worker& w = workers_[replica];
    Json one = {{"replica", replica},
                {"rank", w.seen ? Json(w.rank) : Json(nullptr)},
                {"steps", w.steps},
                {"nonfinite_steps", w.nonfinite_steps},
                {"dropped", w.dropped}};
    for (std::size_t m = 0; m < kMetrics; ++m) {
      one["mean"][kMetricNames[m]] = number(ratio(w.sums[m], w.counts[m]), kTableDigits);
      one["furthest"][kMetricNames[m]] = number(w.counts[m] == 0 ? kNaN : w.furthest[m]);
      one["lines"][kMetricNames[m]] = numbers(w.lines[m].rows());
      one["heat"][kMetricNames[m]] = w.heat[m];
    }
    out.push_back(std::move(one));
  }
  return out;
}

}  // namespace presum::report
