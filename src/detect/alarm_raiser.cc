// SPDX-License-Identifier: Apache-2.0
#include "detect/alarm_raiser.h"

#include <algorithm>
#include <cmath>

namespace presum::detect {
namespace {

bool is_ratio(Statistic s) {
  return s == Statistic::kNorm || s == Statistic::kTokens || s == Statistic::kGroupNorm;
}

}  // namespace

Alarm alarm_about(const RankPanel& panel, Side side, std::uint32_t worker) {
  const bool micro = panel.spec().statistic == Statistic::kMicroBatch;
  Alarm alarm{.kind = micro ? Alarm::Kind::kTooInconsistent : Alarm::Kind::kOutlier,
              .statistic = panel.spec().statistic,
              .high = side == Side::kHigh,
              .replicas = {worker}};
  if (panel.workers() == 2 && !micro) {
    alarm.replicas = {0, 1};
    alarm.high = (side == Side::kHigh) == (worker == 0);
  }
  return alarm;
}

AlarmRaiser::AlarmRaiser(const Options& options, std::uint64_t step, WorkerPanels& panels,
                         std::vector<Alarm>& alarms)
    : options_(options),
      step_(step),
      panels_(panels),
      alarms_(alarms),
      evidence_(panels.evidence()) {}

void AlarmRaiser::raise_workers() {
  for (std::uint32_t i = 0; i < evidence_.size(); ++i) raise_worker(i);
}

// Names a rank by its own evidence alone, so that two ranks at fault are both named. After part of
// the evidence is reset, the rest may still suffice.
void AlarmRaiser::raise_worker(std::uint32_t worker) {
  while (evidence_[worker] >= options_.level) {
    const auto strongest = panels_.strongest(worker);
    if (strongest.evidence <= 0) return;
    raise_or_reset(strongest, worker);
  }
}

void AlarmRaiser::raise_or_reset(const WorkerPanels::Strongest& s, std::uint32_t worker) {
  AlarmMemory& memory = s.panel->memory();
  const Window window = s.panel->window(worker, s.side, step_);
  const bool matters = s.panel->matters(window, s.side);
  if (matters) memory.blame(worker, step_);
  if (!matters || memory.cooling(worker, s.side, step_, options_.cooldown)) {
    s.panel->reset(worker, s.side);
    evidence_[worker] -= s.evidence;
    return;
  }
  alarms_.push_back(outlier(s, worker, window));
  for (const std::uint32_t replica : alarms_.back().replicas) {
    evidence_[replica] = 0;
    const Side side = replica == worker ? s.side : opposite(s.side);
    memory.raised(replica, side, step_, window.effect);
    panels_.reset_worker(replica);
  }
}

Alarm AlarmRaiser::outlier(const WorkerPanels::Strongest& s, std::uint32_t worker,
                           const Window& window) const {
  Alarm alarm = alarm_about(*s.panel, s.side, worker);
  alarm.first_step = window.first_step;
  alarm.step = step_;
  alarm.evidence = std::log10(evidence_[worker]);
  const double sign = worker == alarm.replicas.front() ? 1 : -1;
  alarm.effect = sign * window.effect;
  if (is_ratio(alarm.statistic)) alarm.ratio = std::exp(sign * window.difference);
  const bool whole = alarm.statistic == Statistic::kLoss || alarm.statistic == Statistic::kNorm;
  alarm.group = whole ? panels_.deviating_group(worker) : s.group;
  return alarm;
}

void AlarmRaiser::raise_pairs(PairPanel& pairs) {
  if (pairs.steps() == 0) return;
  for (const auto& c : pairs.crossings(options_.level, step_, options_.cooldown)) {
    alarms_.push_back({.kind = c.similar ? Alarm::Kind::kPairSimilar : Alarm::Kind::kPairOpposed,
                       .statistic = Statistic::kPair,
                       .high = c.similar,
                       .replicas = {c.i, c.j},
                       .first_step = c.window.first_step,
                       .step = step_,
                       .evidence = std::log10(c.evidence),
                       .effect = c.similar ? c.window.effect : -c.window.effect});
  }
}

void AlarmRaiser::raise_partition(Partition& partition) {
  for (const auto test : {Partition::kEven, Partition::kUneven, Partition::kClose}) {
    const double evidence = partition.evidence(test);
    if (!(evidence >= options_.level)) continue;
    const Window window = partition.window(test, step_);
    partition.reset(test);
    if (!Partition::matters(test, window)) continue;
    if (partition.cooling(test, step_, options_.cooldown)) continue;
    if (test == Partition::kUneven && explained_by_outlier(evidence)) continue;
    alarms_.push_back(partition_alarm(test, window, evidence));
  }
}

// One rank with higher or lower losses also makes the ranks' means differ.
bool AlarmRaiser::explained_by_outlier(double evidence) {
  RankPanel& panel = panels_.of(Statistic::kLoss);
  for (const Side side : {Side::kHigh, Side::kLow}) {
    const auto worker = suspect(panel, side);
    if (!worker) continue;
    evidence_[*worker] = evidence;
    raise_or_reset({&panel, side, 0, evidence}, *worker);
    return true;
  }
  return false;
}

Alarm AlarmRaiser::partition_alarm(Partition::Test test, const Window& window,
                                   double evidence) const {
  const bool even = test == Partition::kEven, uneven = test == Partition::kUneven;
  Alarm alarm{.kind = even ? Alarm::Kind::kTooConsistent : Alarm::Kind::kTooInconsistent,
              .statistic = Statistic::kMicroBatch,
              .high = uneven,
              .first_step = window.first_step,
              .step = step_,
              .evidence = std::log10(evidence),
              .effect = uneven ? window.effect : -window.effect};
  const auto worker = even ? std::nullopt : suspect(panels_.of(Statistic::kMicroBatch), Side::kLow);
  if (worker) alarm.replicas = {*worker};
  return alarm;
}

// The rank that holds nearly all evidence of one side, and at least a little. Of two ranks it is
// the first, because they mirror each other. None if the statistic has no reading at this step.
std::optional<std::uint32_t> AlarmRaiser::suspect(const RankPanel& panel, Side side) const {
  constexpr double kShare = 0.9;
  constexpr double kLeast = 1e-6;  // relative to the level
  double total = 0;
  double most = 0;
  std::uint32_t worker = 0;
  for (std::uint32_t i = 0; i < panel.workers(); ++i) {
    const double evidence = panel.evidence(i, side);
    total += evidence;
    if (evidence > most) worker = i;
    most = std::max(most, evidence);
  }
  const bool enough = most > kShare * total && most >= kLeast * options_.level;
  return enough && panel.reading(worker) ? std::optional(worker) : std::nullopt;
}

}  // namespace presum::detect
