// SPDX-License-Identifier: Apache-2.0
// The participants: ranks, hosts, facts and group names.
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

// Thread-safety: not synchronized. Holds at most 65,536 ranks, 1,024 facts of each and 65,536 group
// names; drops the rest.
class Roster {
 public:
  using Facts = std::map<std::string, std::string>;

  void hello(const Identity& who, const WorkerFacts& facts);
  void see(const StepRecord& record);
  // Some model of the job has a data-parallel group with this many ranks.
  void see_group(std::size_t ranks) { widest_group_ = std::max(widest_group_, ranks); }

  // The global rank of a replica; the replica number itself if its process never said hello.
  std::uint32_t rank_of(std::uint32_t replica) const;
  // The hosts of the ranks, without duplicates, ascending.
  std::vector<std::string> hosts(const Ranks& ranks) const;
  // The group's name, or the hexadecimal digits of its id.
  std::string group_name(std::uint64_t id) const;
  // For a sentence: with the layer's class if known, "3 (BatchNorm2d)".
  std::string layer_name(std::uint64_t id) const;
  // Facts by rank.
  const std::map<std::uint32_t, Facts>& facts() const { return facts_; }
  // The value of a fact from the lowest rank that sent it; empty if none did.
  std::string fact(const std::string& key) const;
  // The value if all ranks that sent facts sent the same; empty otherwise.
  std::string fact_of_all(const std::string& key) const;
  // The ranks report themselves, as in C++, and presum is attached to no program: it sees no
  // passes.
  bool sees_no_program() const { return !facts_.empty() && fact("fingerprints").empty(); }
  // Ranks of the job; 0 if unknown.
  std::size_t world_size() const;
  // Ranks of the widest data-parallel group of the job's models; 0 if unknown.
  std::size_t widest_group() const { return widest_group_; }
  // Of this rank; empty if it did not send the fact.
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
