// SPDX-License-Identifier: Apache-2.0
// Ranks by the value that they hold.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "presum/step_record.h"

namespace presum::checks {

// The value of a rank's fingerprint; `other` if it was not sent.
std::uint64_t value_of(const WorkerRecord& worker, FingerprintKind kind, std::uint64_t other = 0);
// The same for a real number; NaN if it was not sent.
double real_of(const WorkerRecord& worker, FingerprintKind kind);

// Ascending sets of ranks.
using Ranks = std::vector<std::uint32_t>;
bool intersect(const Ranks& a, const Ranks& b);
Ranks unite(const Ranks& a, const Ranks& b);
Ranks without(const Ranks& a, const Ranks& b);
void insert(Ranks& ranks, std::uint32_t rank);

// The ranks at fault: those outside the group that holds more than half, or everyone.
struct Blame {
  Ranks ranks;
  bool everyone = false;
  // Too few ranks are known at this step to tell which of these ranks differ.
  bool undecided = false;

  void add(const Blame& other);
};

struct RankValue {
  std::uint64_t value = 0;
  std::uint32_t rank = 0;
};

struct Split {
  struct Group {
    std::uint64_t value = 0;
    Ranks ranks;
  };
  std::vector<Group> groups;  // largest first, then by first rank
  std::size_t known = 0;      // ranks that hold a value
  std::size_t asked = 0;      // ranks of the step; 0: unknown

  bool differs() const { return groups.size() > 1; }
  Blame blame() const;
  // The ranks of every group of at least two.
  Ranks shared() const;
  // "0-6: 42; 7: 43", at most eight groups.
  std::string text(const std::function<std::string(std::uint64_t)>& name = [](std::uint64_t value) {
    return std::to_string(value);
  }) const;
};

// No group for no ranks, one for ranks that agree (or a single one).
Split split(std::vector<RankValue> held);
// By a fingerprint, over the ranks that sent it.
Split split(const StepRecord& record, FingerprintKind kind);
// "0-3; 5,7": the ranks of every group of at least two.
std::string shared_text(const Split& split);

}  // namespace presum::checks
