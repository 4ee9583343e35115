// SPDX-License-Identifier: Apache-2.0
// Input that no loader dealt: input that a program draws or computes itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "checks/engine/step_context.h"

namespace presum::checks {

using Members = std::vector<std::size_t>;  // positions in StepRecord::workers

Ranks ranks_of(const StepContext& context, const Members& members);
// The content of all tensors of a rank's batch, as far as known.
std::uint64_t content_of(const StepContext& context, std::size_t place);
// Whether a loader is known to have dealt the rank's input.
bool is_dealt(const WorkerRecord& worker);

// Non-loader input that several ranks share. It may be noise that a program draws, in some of its
// passes. Several steps show whether it is equal in all of them.
class NonLoaderInput {
 public:
  static constexpr std::uint64_t kToSee = 6;  // steps before that shows

  // Steps since the ranks first had equal non-loader input.
  struct Group {
    std::uint64_t first_step = 0;
    std::uint64_t equal = 0;
    std::uint64_t known = 0;
  };

  // Counts every step in which the rows of all ranks of a group are known.
  void watch(const StepContext& context);
  // These members have equal input. Null if a loader dealt it.
  Group* equal(const StepContext& context, const Members& members);
  const Group* find(const Ranks& ranks) const;
  // Steps until every input that has been equal so far can be judged.
  std::uint64_t undecided() const;

 private:
  std::map<Ranks, Group> groups_;  // at most 64
  Group beyond_{};                 // for groups that do not fit; reports nothing
};

}  // namespace presum::checks
