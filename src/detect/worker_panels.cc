// SPDX-License-Identifier: Apache-2.0
#include "detect/worker_panels.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace presum::detect {
namespace {

constexpr std::array kThetas = {0.25, 0.5, 0.8, 1.25, 2.0, 4.0};
constexpr std::array kGroupThetas = {1.0, 4.0};

// The weights of all statistics, including pairs (0.1) and partitions (0.1), add up to 1.
constexpr std::array kSpecs = {
    PanelSpec{Statistic::kLoss, true, true, 0.2, 2, true, 0.005},
    PanelSpec{Statistic::kNorm, true, true, 0.2, 2, false, 0.03},
    PanelSpec{Statistic::kDirection, true, true, 0.15, 3, false, 0.002},
    PanelSpec{Statistic::kPeak, true, true, 0.05, 2, false, 0.03},
    PanelSpec{Statistic::kResidual, true, false, 0.05, 4, false, 0.03},
    PanelSpec{Statistic::kTokens, true, true, 0.05, 2, false, 0.03},
    PanelSpec{Statistic::kMicroBatch, false, true, 0.05, 2, true, 0.5},
};
constexpr std::size_t kGroupsMax = 64;
constexpr PanelSpec kGroupSpec{
    Statistic::kGroupNorm, true, true, 0.05 / double(kGroupsMax), 2, false, 0.1};

constexpr std::size_t place_of(Statistic statistic) {
  std::size_t k = 0;
  while (kSpecs[k].statistic != statistic) ++k;
  return k;
}

}  // namespace

WorkerPanels::WorkerPanels(std::size_t workers)
    : workers_(workers), tables_(kThetas), group_tables_(kGroupThetas) {
  for (const PanelSpec& spec : kSpecs) panels_.emplace_back(spec, workers, kThetas.size());
}

StatisticSet WorkerPanels::update(const Statistics& values, std::uint64_t step) {
  tables_.trim();
  const std::array<const std::vector<double>*, kSpecs.size()> sources = {
      &values.loss,     &values.norm,   &values.direction, &values.peak,
      &values.residual, &values.tokens, &values.closest};
  StatisticSet seen;
  for (std::size_t k = 0; k < panels_.size(); ++k) {
    seen[static_cast<std::size_t>(kSpecs[k].statistic)] =
        panels_[k].update(*sources[k], step, tables_);
  }
  return seen;
}

bool WorkerPanels::update_groups(const StepRecord& record, std::uint64_t step) {
  group_tables_.trim();
  group_values_.assign(workers_, kNaN);
  bool seen = false;
  for (std::size_t g = 0; g < record.groups.size(); ++g) {
    RankPanel* panel = group_panel(record.groups[g].id, g);
    if (panel == nullptr || practically_zero(record, record.groups[g])) continue;
    fill_group(record, record.groups[g], group_values_);
    for (std::size_t i = 0; i < workers_; ++i) {
      if (blamed(Statistic::kNorm, i, step)) group_values_[i] = kNaN;
    }
    seen = panel->update(group_values_, step, group_tables_) || seen;
  }
  return seen;
}

RankPanel* WorkerPanels::group_panel(std::uint64_t id, std::size_t likely) {
  if (likely < group_ids_.size() && group_ids_[likely] == id) return &groups_[likely];
  const auto found = std::ranges::find(group_ids_, id);
  if (found != group_ids_.end()) return &groups_[std::size_t(found - group_ids_.begin())];
  if (group_ids_.size() == kGroupsMax) return nullptr;
  return &add_group(id);
}

RankPanel& WorkerPanels::add_group(std::uint64_t id) {
  group_ids_.push_back(id);
  return groups_.emplace_back(kGroupSpec, workers_, kGroupThetas.size());
}

RankPanel& WorkerPanels::of(Statistic statistic) { return panels_[place_of(statistic)]; }
const RankPanel& WorkerPanels::of(Statistic statistic) const {
  return panels_[place_of(statistic)];
}

std::vector<double> WorkerPanels::evidence() const {
  std::vector<double> totals(workers_, 0);
  for (const auto* set : {&panels_, &groups_}) {
    for (const RankPanel& panel : *set) panel.add_evidence(totals);
  }
  return totals;
}

WorkerPanels::Strongest WorkerPanels::strongest(std::uint32_t worker) {
  Strongest best;
  const auto offer = [&](RankPanel& panel, std::uint64_t group) {
    for (const Side side : {Side::kHigh, Side::kLow}) {
      const double evidence = panel.evidence(worker, side);
      if (evidence > best.evidence) best = {&panel, side, group, evidence};
    }
  };
  for (RankPanel& panel : panels_) offer(panel, 0);
  for (std::size_t g = 0; g < groups_.size(); ++g) offer(groups_[g], group_ids_[g]);
  return best;
}

void WorkerPanels::reset_worker(std::uint32_t worker) {
  for (auto* set : {&panels_, &groups_}) {
    for (RankPanel& panel : *set) panel.reset_worker(worker);
  }
}

std::uint64_t WorkerPanels::deviating_group(std::uint32_t worker) const {
  constexpr double kLeastDifference = 0.2;
  constexpr double kTimesOthers = 3;
  std::vector<double> sizes;
  for (const RankPanel& panel : groups_) sizes.push_back(std::abs(panel.recent(worker)));
  if (sizes.size() < 3) return 0;
  const auto largest = std::ranges::max_element(sizes);
  const double size = *largest;
  const std::uint64_t id = group_ids_[std::size_t(largest - sizes.begin())];
  return size >= kLeastDifference && size >= kTimesOthers * median(sizes) ? id : 0;
}

void WorkerPanels::restart(std::uint64_t step) {
  for (auto* set : {&panels_, &groups_}) {
    for (RankPanel& panel : *set) panel.restart(step);
  }
}

void WorkerPanels::visit(Archive& archive) {
  archive(std::span(panels_));
  std::uint64_t groups = groups_.size();
  archive(groups);
  archive.require(groups <= (workers_ <= kGroupWorkersMax ? kGroupsMax : 0));
  while (archive.ok() && groups_.size() < groups) add_group(0);
  archive(std::span(group_ids_));
  archive(std::span(groups_));
}

}  // namespace presum::detect
