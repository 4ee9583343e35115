// SPDX-License-Identifier: Apache-2.0
#include "checks/engine/state_hashes.h"

#include <algorithm>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/hash.h"

namespace presum::checks {
namespace {

using Kind = StateHash::Kind;

bool is_of(const StateHash& s, Kind kind, std::uint32_t shard) {
  return s.kind == kind && s.shard == shard;
}

bool same(const StateHash& a, const StateHash& b) {
  return a.group == b.group && a.kind_and_shard() == b.kind_and_shard() && a.value == b.value;
}

}  // namespace

bool all_equal(const StepRecord& record) {
  const auto& first = record.workers.front().states;
  return std::all_of(record.workers.begin() + 1, record.workers.end(), [&](const WorkerRecord& w) {
    return std::equal(w.states.begin(), w.states.end(), first.begin(), first.end(), same);
  });
}

std::set<std::uint32_t> shards_of(const StepRecord& record, Kind kind) {
  std::set<std::uint32_t> out;
  for (const WorkerRecord& w : record.workers) {
    for (const StateHash& s : w.states) {
      if (s.kind == kind) out.insert(s.shard);
    }
  }
  return out;
}

Groups differing(const StepRecord& record, Kind kind, std::uint32_t shard) {
  std::unordered_map<std::uint64_t, std::uint64_t> first;
  Groups out;
  for (const WorkerRecord& w : record.workers) {
    for (const StateHash& s : w.states) {
      if (is_of(s, kind, shard) && first.try_emplace(s.group, s.value).first->second != s.value) {
        out.insert(s.group);
      }
    }
  }
  return out;
}

Split split_states(const StepRecord& record, Kind kind, std::uint32_t shard, const Groups& groups) {
  std::vector<RankValue> held;
  for (const WorkerRecord& w : record.workers) {
    std::uint64_t sum = 0;
    std::size_t found = 0;
    for (const StateHash& s : w.states) {
      if (!is_of(s, kind, shard) || !groups.contains(s.group)) continue;
      sum += mix64(s.value ^ mix64(s.group));
      ++found;
    }
    if (found == groups.size()) held.push_back({sum, w.rank});
  }
  return split(std::move(held));
}

}  // namespace presum::checks
