// SPDX-License-Identifier: Apache-2.0
#include "checks/engine/split.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "checks/engine/text.h"

namespace presum::checks {
namespace {

constexpr std::size_t kGroupsShown = 8;

bool all_equal(const std::vector<RankValue>& held) {
  return std::ranges::all_of(held, [&](const auto& h) { return h.value == held.front().value; });
}

std::vector<Split::Group> group(std::vector<RankValue>& held) {
  if (!all_equal(held)) {
    std::ranges::sort(held, {}, [](const auto& h) { return std::pair(h.value, h.rank); });
  }
  std::vector<Split::Group> groups;
  for (const RankValue& h : held) {
    if (groups.empty() || groups.back().value != h.value) groups.push_back({h.value, {}});
    groups.back().ranks.push_back(h.rank);
  }
  for (Split::Group& g : groups) std::sort(g.ranks.begin(), g.ranks.end());
  return groups;
}

}  // namespace

std::uint64_t value_of(const WorkerRecord& worker, FingerprintKind kind, std::uint64_t other) {
  const std::uint64_t* value = worker.fingerprint_of(kind);
  return value == nullptr ? other : *value;
}

double real_of(const WorkerRecord& worker, FingerprintKind kind) {
  const std::uint64_t* bits = worker.fingerprint_of(kind);
  return bits == nullptr ? kNaN : std::bit_cast<double>(*bits);
}

bool intersect(const Ranks& a, const Ranks& b) {
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    if (a[i] == b[j]) return true;
    ++(a[i] < b[j] ? i : j);
  }
  return false;
}

Ranks unite(const Ranks& a, const Ranks& b) {
  Ranks out;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(out));
  return out;
}

Ranks without(const Ranks& a, const Ranks& b) {
  Ranks out;
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(out));
  return out;
}

void insert(Ranks& ranks, std::uint32_t rank) {
  const auto at = std::lower_bound(ranks.begin(), ranks.end(), rank);
  if (at == ranks.end() || *at != rank) ranks.insert(at, rank);
}

void Blame::add(const Blame& other) {
  if (other.undecided && intersect(ranks, other.ranks)) return;
  if (ranks.empty() || (undecided && intersect(ranks, other.ranks))) {
    *this = other;
    return;
  }
  ranks = unite(ranks, other.ranks);
  everyone = everyone || other.everyone;
  undecided = undecided || other.undecided;
}

Blame Split::blame() const {
  Blame out;
  const bool majority = !groups.empty() && 2 * groups.front().ranks.size() > known;
  out.everyone = !majority;
  out.undecided = out.everyone && known < asked;
  for (std::size_t g = majority ? 1 : 0; g < groups.size(); ++g) {
    out.ranks = unite(out.ranks, groups[g].ranks);
  }
  return out;
}

Ranks Split::shared() const {
  Ranks out;
  for (const Group& g : groups) {
    if (g.ranks.size() > 1) out.insert(out.end(), g.ranks.begin(), g.ranks.end());
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::string Split::text(const std::function<std::string(std::uint64_t)>& name) const {
  return joined(groups, kGroupsShown, "; ",
                [&](const Group& g) { return rank_ranges(g.ranks) + ": " + name(g.value); });
}

Split split(std::vector<RankValue> held) {
  Split out;
  out.known = held.size();
  out.groups = group(held);
  std::ranges::sort(out.groups, [](const Split::Group& a, const Split::Group& b) {
    if (a.ranks.size() != b.ranks.size()) return a.ranks.size() > b.ranks.size();
    return a.ranks.front() < b.ranks.front();
  });
  return out;
}

Split split(const StepRecord& record, FingerprintKind kind) {
  std::vector<RankValue> held;
  held.reserve(record.workers.size());
  for (const WorkerRecord& w : record.workers) {
    if (const std::uint64_t* value = w.fingerprint_of(kind)) held.push_back({*value, w.rank});
  }
  Split out = split(std::move(held));
  out.asked = record.workers.size();
  return out;
}

std::string shared_text(const Split& split) {
  std::vector<Split::Group> shared = split.groups;
  std::erase_if(shared, [](const Split::Group& g) { return g.ranks.size() < 2; });
  return joined(shared, kGroupsShown, "; ",
                [](const Split::Group& g) { return rank_ranges(g.ranks); });
}

}  // namespace presum::checks
