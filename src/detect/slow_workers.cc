// SPDX-License-Identifier: Apache-2.0
#include "detect/slow_workers.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace presum::detect {
namespace {

constexpr std::array kThetas = {1.0, 6.0};
constexpr std::size_t kWorkersMax = 4096;
constexpr double kLeastSeconds = 1e-6;

// Without the time that the thread waited for a processor, a difference of 4 % matters; with that
// time, on shared machines, 25 %.
const std::array kSpecs = {
    PanelSpec{Statistic::kOwnTime, true, false, 0.75, 2, false, std::log(1.04)},
    PanelSpec{Statistic::kQueuedTime, true, false, 0.25, 2, false, std::log(1.25)},
};

double log_of(double seconds) { return std::log(std::max(seconds, kLeastSeconds)); }

Alarm alarm_of(const RankPanel& panel, std::uint32_t worker) {
  return {.statistic = panel.spec().statistic, .replicas = {worker}};
}

}  // namespace

SlowWorkers::SlowWorkers(const Options& options) : options_(options), tables_(kThetas) {}

void SlowWorkers::start(std::uint32_t expected) {
  workers_ = expected;
  panels_.clear();
  const std::size_t n = expected < 2 || expected > kWorkersMax ? 0 : expected;
  for (const PanelSpec& spec : kSpecs) panels_.emplace_back(spec, n, kThetas.size());
}

void SlowWorkers::fill(const StepRecord& record) {
  own_.assign(workers_, kNaN);
  queued_.assign(workers_, kNaN);
  const bool told = std::ranges::none_of(
      record.workers, [](const WorkerRecord& w) { return std::isnan(w.times.queued); });
  for (const WorkerRecord& w : record.workers) {
    if (!w.times.known() || w.replica >= workers_) continue;
    const double seconds = w.times.own();
    const double waited = told ? w.times.queued : 0;  // if any rank lacks it, subtract it nowhere
    own_[w.replica] = log_of(seconds - std::min(waited, seconds));
    queued_[w.replica] = log_of(seconds);
  }
}

void SlowWorkers::raise(RankPanel& panel, std::uint32_t worker, std::uint64_t step,
                        TimeAlarms& out) {
  const double evidence = panel.evidence(worker, Side::kHigh);
  if (!(evidence >= options_.level)) return;
  const Window window = panel.window(worker, Side::kHigh, step);
  panel.reset(worker, Side::kHigh);
  if (!panel.matters(window, Side::kHigh)) return;
  AlarmMemory& memory = panel.memory();
  memory.blame(worker, step);
  if (memory.cooling(worker, Side::kHigh, step, options_.cooldown)) return;
  memory.raised(worker, Side::kHigh, step, window.effect);
  Alarm alarm = alarm_of(panel, worker);
  alarm.first_step = window.first_step;
  alarm.step = step;
  alarm.evidence = std::log10(evidence);
  alarm.effect = window.effect;
  alarm.ratio = std::exp(window.difference);
  out.raised.push_back(std::move(alarm));
}

TimeAlarms SlowWorkers::judge(const StepRecord& record) {
  TimeAlarms out;
  if (record.workers_expected != workers_) start(record.workers_expected);
  if (steps_ > 0 && record.step <= last_step_) {
    for (RankPanel& panel : panels_) panel.restart(record.step);
  }
  last_step_ = record.step;
  fill(record);
  tables_.trim();
  bool seen = false;
  for (RankPanel& panel : panels_) {
    if (panel.workers() == 0) continue;
    const bool with_queue = panel.spec().statistic == Statistic::kQueuedTime;
    if (!panel.update(with_queue ? queued_ : own_, record.step, tables_)) continue;
    seen = true;
    for (std::uint32_t i = 0; i < panel.workers(); ++i) raise(panel, i, record.step, out);
    for (const auto& [worker, side] : panel.lasting()) {
      out.lasting.push_back(alarm_of(panel, worker));
    }
  }
  steps_ += seen ? 1 : 0;
  out.watched = steps_;
  return out;
}

}  // namespace presum::detect
