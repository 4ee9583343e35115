// SPDX-License-Identifier: Apache-2.0
#include "checks/engine/roster.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

namespace presum::checks {
namespace {

constexpr std::size_t kWorkers = 65536;
constexpr std::size_t kFacts = 1024;
constexpr std::size_t kGroups = 65536;

// Whether `map` has the key or room for it.
template <typename Map, typename Key>
bool room(const Map& map, const Key& key, std::size_t limit) {
  return map.size() < limit || map.contains(key);
}

}  // namespace

void Roster::hello(const Identity& who, const WorkerFacts& facts) {
  ++revision_;
  if (!room(facts_, who.rank, kWorkers)) return;
  ranks_[who.replica] = who.rank;
  hosts_[who.rank] = facts.host;
  Facts& known = facts_[who.rank];
  for (const auto& [key, value] : facts.facts) {
    if (room(known, key, kFacts)) known[key] = value;
  }
  for (const GroupName& g : facts.groups) {
    if (room(groups_, g.id, kGroups)) groups_[g.id] = g.name;
  }
}

void Roster::see(const StepRecord& record) {
  for (const WorkerRecord& w : record.workers) {
    if (room(ranks_, w.replica, kWorkers)) ranks_[w.replica] = w.rank;
  }
}

std::uint32_t Roster::rank_of(std::uint32_t replica) const {
  const auto found = ranks_.find(replica);
  return found == ranks_.end() ? replica : found->second;
}

std::vector<std::string> Roster::hosts(const Ranks& ranks) const {
  std::set<std::string> out;
  for (const std::uint32_t rank : ranks) {
    const auto found = hosts_.find(rank);
    if (found != hosts_.end() && !found->second.empty()) out.insert(found->second);
  }
  return {out.begin(), out.end()};
}

std::string Roster::group_name(std::uint64_t id) const {
  const auto found = groups_.find(id);
  return found == groups_.end() ? fmt::format("{:016x}", id) : found->second;
}

std::string Roster::layer_name(std::uint64_t id) const {
  const std::string name = group_name(id);
  const std::string kind = fact("layer." + name);
  return kind.empty() ? name : fmt::format("{} ({})", name, kind);
}

std::size_t Roster::world_size() const {
  const std::string told = fact("world_size");
  std::size_t out = 0;
  std::from_chars(told.data(), told.data() + told.size(), out);
  return out;
}

std::string Roster::fact_of(std::uint32_t rank, const std::string& key) const {
  const auto facts = facts_.find(rank);
  if (facts == facts_.end()) return {};
  const auto found = facts->second.find(key);
  return found == facts->second.end() ? std::string() : found->second;
}

std::string Roster::fact_of_all(const std::string& key) const {
  const std::string value = fact(key);
  const bool equal = std::ranges::all_of(
      facts_, [&](const auto& entry) { return fact_of(entry.first, key) == value; });
  return equal ? value : std::string();
}

std::string Roster::fact(const std::string& key) const {
  for (const auto& [rank, facts] : facts_) {
    const auto found = facts.find(key);
    if (found != facts.end()) return found->second;
  }
  return {};
}

}  // namespace presum::checks
