// SPDX-License-Identifier: Apache-2.0
#include "diagnose/phase_means.h"

#include <algorithm>
#include <cmath>

namespace presum::diagnose {
namespace {

template <class Value>
std::vector<double> values_of(const StepRecord& record, Value&& value) {
  std::vector<double> out;
  for (const WorkerRecord& w : record.workers) out.push_back(value(w.times));
  return out;
}

double mean_of(std::span<const double> values) {
  double sum = 0;
  for (const double x : values) sum += x;
  return sum / static_cast<double>(values.size());
}

double queued_of(const StepTimes& times) { return std::isnan(times.queued) ? 0 : times.queued; }

}  // namespace

bool all_timed(const StepRecord& record) {
  return record.workers.size() > 1 &&
         std::ranges::all_of(record.workers, [](const WorkerRecord& w) { return w.times.known(); });
}

double median_of_others(std::span<const double> values, std::size_t at) {
  std::vector<double> others(values.begin(), values.end());
  others.erase(others.begin() + static_cast<std::ptrdiff_t>(at));
  std::ranges::sort(others);
  const std::size_t n = others.size();
  return others[(n - 1) / 2] + (others[n / 2] - others[(n - 1) / 2]) / 2;
}

void PhaseMeans::see(const StepRecord& record) {
  const auto& workers = record.workers;
  const auto own = values_of(record, [](const StepTimes& t) { return t.own(); });
  const auto waits = values_of(record, [](const StepTimes& t) { return t.of(Phase::kReduction); });
  const auto queued = values_of(record, queued_of);
  const double all_waits = mean_of(waits) * static_cast<double>(waits.size());
  for (std::size_t i = 0; i < workers.size(); ++i) {
    WorkerTimes& w = workers_[workers[i].replica];
    const double others = median_of_others(own, i);
    w.own.add(own[i] - others);
    w.others_own.add(others);
    w.queued.add(queued[i] - median_of_others(queued, i));
    w.waits.add(waits[i] - (all_waits - waits[i]) / static_cast<double>(waits.size() - 1));
    const StepTimes& times = workers[i].times;
    if (own[i] > 0 && std::isfinite(times.processor)) {
      w.own_processor.add(std::min(1.0, times.processor / own[i]));
    }
  }
  for (std::size_t p = 0; p < kPhaseCount; ++p) {
    const auto seconds = values_of(record, [&](const StepTimes& t) { return t.seconds[p]; });
    for (std::size_t i = 0; i < workers.size(); ++i) {
      workers_[workers[i].replica].phases[p].add(seconds[i] - median_of_others(seconds, i));
    }
  }
  total_.add(mean_of(values_of(record, [](const StepTimes& t) { return t.total(); })));
  waiting_.add(mean_of(waits) - *std::ranges::min_element(waits));
  data_.add(mean_of(values_of(record, [](const StepTimes& t) { return t.of(Phase::kData); })));
}

}  // namespace presum::diagnose
