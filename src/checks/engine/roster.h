// SPDX-License-Identifier: Apache-2.0
// Who takes part: ranks, hosts, facts and group names.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "checks/engine/diagnoser.h"
#include "checks/engine/split.h"

namespace presum::checks {

// Thread-safety: not synchronized. Holds at most 65,536 workers, 1,024 facts of each and 65,536
// group names; what is beyond is left out.
class Roster {
 public:
  using Facts = std::map<std::string, std::string>;

  void hello(const Identity& who, const WorkerFacts& facts);
  void see(const StepRecord& record);
  // A data-parallel group of some model of the job has so many ranks.
  void see_group(std::size_t ranks) { widest_group_ = std::max(widest_group_, ranks); }

  // The global rank of a replica; the replica's own number where its worker was never heard.
  std::uint32_t rank_of(std::uint32_t replica) const;
  // The hosts of the ranks, each once, ascending.
  std::vector<std::string> hosts(const Ranks& ranks) const;
  // The group's name, or the hexadecimal digits of its id.
  std::string group_name(std::uint64_t id) const;
  // For a sentence: with its layer's class where that was told, "3 (BatchNorm2d)".
  std::string layer_name(std::uint64_t id) const;
  // Facts by rank.
  const std::map<std::uint32_t, Facts>& facts() const { return facts_; }
  // The value of a fact, of the lowest rank that told it; empty where nobody did.
  std::string fact(const std::string& key) const;
  // The same on all ranks that told anything; else empty.
  std::string fact_of_all(const std::string& key) const;
  // Ranks of the job; 0 where nobody told.
  std::size_t world_size() const;
  // Ranks of the widest data-parallel group of the job's models; 0 where nobody told.
  std::size_t widest_group() const { return widest_group_; }
  // Of this rank; empty where it did not tell.
  std::string fact_of(std::uint32_t rank, const std::string& key) const;
  // Grows with every hello.
  std::uint64_t revision() const { return revision_; }

 private:
  std::unordered_map<std::uint32_t, std::uint32_t> ranks_;  // by replica
  std::map<std::uint32_t, std::string> hosts_;              // by rank
  std::map<std::uint32_t, Facts> facts_;                    // by rank
  std::unordered_map<std::uint64_t, std::string> groups_;
  std::uint64_t revision_ = 0;
  std::size_t widest_group_ = 0;
};

}  // namespace presum::checks
