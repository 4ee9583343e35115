// SPDX-License-Identifier: Apache-2.0
#include "detect/slow_workers.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "detect/rank_panel.h"

namespace presum::detect {
namespace {

constexpr std::array kThetas = {1.0, 6.0};
constexpr std::size_t kWorkersMax = 4096;
constexpr double kLeastSeconds = 1e-6;

// Without what the thread waited for a processor, 4 % matter; with it, on machines that are shared,
// a quarter.
const std::array kSpecs = {
    PanelSpec{Statistic::kOwnTime, true, false, 0.75, 2, false, std::log(1.04)},
    PanelSpec{Statistic::kQueuedTime, true, false, 0.25, 2, false, std::log(1.25)},
};

double log_of(double seconds) { return std::log(std::max(seconds, kLeastSeconds)); }

}  // namespace

struct SlowWorkers::State {
  explicit State(const Options& o) : options(o), tables(kThetas) {}

  void start(std::uint32_t expected) {
    workers = expected;
    panels.clear();
    const std::size_t n = expected < 2 || expected > kWorkersMax ? 0 : expected;
    for (const PanelSpec& spec : kSpecs) panels.emplace_back(spec, n, kThetas.size());
  }
  void fill(const StepRecord& record);
  void raise(RankPanel& panel, std::uint32_t worker, std::uint64_t step, TimeAlarms& out);
  static Alarm alarm_of(const RankPanel& panel, std::uint32_t worker);

  Options options;
  RankTables tables;
  std::uint32_t workers = 0;
  std::uint64_t steps = 0;
  std::uint64_t last_step = 0;
  std::vector<RankPanel> panels;
  std::vector<double> own;     // log, without what the thread was queued; by replica
  std::vector<double> queued;  // log, with it
};

void SlowWorkers::State::fill(const StepRecord& record) {
  own.assign(workers, kNaN);
  queued.assign(workers, kNaN);
  const bool told = std::ranges::none_of(
      record.workers, [](const WorkerRecord& w) { return std::isnan(w.times.queued); });
  for (const WorkerRecord& w : record.workers) {
    if (!w.times.known() || w.replica >= workers) continue;
    const double seconds = w.times.own();
    const double waited = told ? w.times.queued : 0;  // else unlike things would be compared
    own[w.replica] = log_of(seconds - std::min(waited, seconds));
    queued[w.replica] = log_of(seconds);
  }
}

Alarm SlowWorkers::State::alarm_of(const RankPanel& panel, std::uint32_t worker) {
  Alarm alarm;
  alarm.statistic = panel.spec().statistic;
  alarm.replicas = {worker};
  return alarm;
}

void SlowWorkers::State::raise(RankPanel& panel, std::uint32_t worker, std::uint64_t step,
                               TimeAlarms& out) {
  const double evidence = panel.evidence(worker, Side::kHigh);
  if (!(evidence >= options.level)) return;
  const Window window = panel.window(worker, Side::kHigh, step);
  panel.reset(worker, Side::kHigh);
  if (!panel.matters(window, Side::kHigh)) return;
  AlarmMemory& memory = panel.memory();
  memory.blame(worker, step);
  if (memory.cooling(worker, Side::kHigh, step, options.cooldown)) return;
  memory.raised(worker, Side::kHigh, step, window.effect);
  Alarm alarm = alarm_of(panel, worker);
  alarm.first_step = window.first_step;
  alarm.step = step;
  alarm.evidence = std::log10(evidence);
  alarm.effect = window.effect;
  alarm.ratio = std::exp(window.difference);
  out.raised.push_back(std::move(alarm));
}

SlowWorkers::SlowWorkers(const Options& options) : state_(std::make_unique<State>(options)) {}
SlowWorkers::SlowWorkers(SlowWorkers&&) noexcept = default;
SlowWorkers& SlowWorkers::operator=(SlowWorkers&&) noexcept = default;
SlowWorkers::~SlowWorkers() = default;

TimeAlarms SlowWorkers::judge(const StepRecord& record) {
  State& s = *state_;
  TimeAlarms out;
  if (record.workers_expected != s.workers) s.start(record.workers_expected);
  if (s.steps > 0 && record.step <= s.last_step) {
    for (RankPanel& panel : s.panels) panel.restart(record.step);
  }
  s.last_step = record.step;
  s.fill(record);
  s.tables.trim();
  bool seen = false;
  for (RankPanel& panel : s.panels) {
    if (panel.workers() == 0) continue;
    const bool with_queue = panel.spec().statistic == Statistic::kQueuedTime;
    if (!panel.update(with_queue ? s.queued : s.own, record.step, s.tables)) continue;
    seen = true;
    for (std::uint32_t i = 0; i < panel.workers(); ++i) s.raise(panel, i, record.step, out);
    for (const auto& [worker, side] : panel.lasting()) {
      out.lasting.push_back(State::alarm_of(panel, worker));
    }
  }
  s.steps += seen ? 1 : 0;
  out.watched = s.steps;
  return out;
}

}  // namespace presum::detect
