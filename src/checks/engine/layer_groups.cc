// SPDX-License-Identifier: Apache-2.0
#include "checks/engine/layer_groups.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "checks/engine/split.h"
#include "checks/engine/text.h"

namespace presum::checks {
namespace {

using Sets = std::vector<Ranks>;

// The sets of ranks that reduced a layer among themselves; empty if unknown for some rank.
Sets reduced_among(const LayerReduction& layer, std::size_t workers) {
  if (layer.kept_own.size() == workers) {
    Sets each;
    for (const std::uint32_t rank : layer.kept_own) each.push_back({rank});
    return each;
  }
  std::set<std::uint32_t> ranks;
  std::size_t counted = 0;
  for (const auto& set : layer.means_of) {
    ranks.insert(set.begin(), set.end());
    counted += set.size();
  }
  return ranks.size() == workers && counted == workers ? layer.means_of : Sets();
}

std::optional<std::uint64_t> parameters_of(const WorkerRecord& worker, std::uint64_t layer) {
  for (const StateHash& s : worker.states) {
    if (s.kind == StateHash::Kind::kParameters && s.group == layer && s.shard == 0) return s.value;
  }
  return std::nullopt;
}

// Whether the ranks of one set hold equal parameters of a layer, and those of two sets different
// ones.
bool held_apart(const StepRecord& record, std::uint64_t layer, const Sets& sets) {
  std::vector<RankValue> held;
  for (const WorkerRecord& w : record.workers) {
    const auto parameters = parameters_of(w, layer);
    if (!parameters) return false;
    held.push_back({*parameters, w.rank});
  }
  std::set<Ranks> copies;
  for (const Split::Group& group : split(std::move(held)).groups) copies.insert(group.ranks);
  return copies == std::set<Ranks>(sets.begin(), sets.end());
}

}  // namespace

void LayerGroups::see(const StepRecord& record) {
  if (looked_ || record.workers.size() < 2 || record.workers.size() != record.workers_expected) {
    return;
  }
  looked_ = true;
  if (std::ranges::none_of(record.layers, &LayerReduction::alike)) return;
  for (const LayerReduction& layer : record.layers) {
    const Sets sets = reduced_among(layer, record.workers.size());
    if (sets.size() < 2 || !held_apart(record, layer.id, sets)) continue;
    GroupOfRank& group_of = group_of_[layer.id];
    for (std::uint32_t group = 1; group <= sets.size(); ++group) {
      for (const std::uint32_t rank : sets[group - 1]) group_of[rank] = group;
    }
  }
}

std::string LayerGroups::names(const Roster& roster, std::size_t at_most) const {
  std::vector<std::uint64_t> ids;
  for (const auto& [layer, group] : group_of_) ids.push_back(layer);
  return first_names(ids, at_most, [&](auto layer) { return roster.layer_name(layer); });
}

Sets LayerGroups::groups() const {
  std::map<std::uint32_t, Ranks> by_group;
  for (const auto& [rank, group] : group_of_.begin()->second) by_group[group].push_back(rank);
  Sets out;
  for (auto& [group, ranks] : by_group) out.push_back(std::move(ranks));
  return out;
}

void LayerGroups::shard(std::uint32_t rank, std::vector<StateHash>& states) const {
  for (StateHash& s : states) {
    const auto layer = group_of_.find(s.group);
    const bool of_layer =
        s.kind == StateHash::Kind::kParameters || s.kind == StateHash::Kind::kOptimizer;
    if (layer == group_of_.end() || !of_layer) continue;
    const auto group = layer->second.find(rank);
    if (group != layer->second.end()) s.shard = group->second;
  }
}

StepRecord LayerGroups::apart(StepRecord record) const {
  std::erase_if(record.layers, [&](const auto& layer) { return group_of_.contains(layer.id); });
  for (WorkerRecord& w : record.workers) {
    shard(w.rank, w.states);
    w.reduced_norm = kNaN;
    w.reduced_fingerprint = 0;
  }
  return record;
}

FinalState LayerGroups::apart(std::uint32_t rank, FinalState last) const {
  shard(rank, last.states);
  return last;
}

}  // namespace presum::checks
