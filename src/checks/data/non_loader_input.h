// SPDX-License-Identifier: Apache-2.0
// Input that no loader dealt: what a program draws or computes itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "checks/engine/step_context.h"

namespace presum::checks {

using Members = std::vector<std::size_t>;  // places in StepRecord::workers

Ranks ranks_of(const StepContext& context, const Members& members);
// What all tensors of a worker's batch hold, as far as it is known.
std::uint64_t content_of(const StepContext& context, std::size_t place);
// Whether a loader is known to have dealt the worker's input.
bool is_dealt(const WorkerRecord& worker);

// Such input that workers were given alike: it may be noise that a program draws, in some of its
// passes. Whether it is equal in all steps shows after some.
class NonLoaderInput {
 public:
  static constexpr std::uint64_t kToSee = 6;  // steps until it shows

  // Steps since workers were first given equal input that no loader dealt.
  struct Group {
    std::uint64_t first_step = 0;
    std::uint64_t equal = 0;
    std::uint64_t known = 0;
  };

  // Every step counts in which the rows of all of a group are known.
  void watch(const StepContext& context);
  // These have equal input. Null for what a loader dealt.
  Group* equal(const StepContext& context, const Members& members);
  const Group* find(const Ranks& ranks) const;
  // Steps until all that was equal ever since can be judged.
  std::uint64_t undecided() const;

 private:
  std::map<Ranks, Group> groups_;  // at most 64
  Group beyond_{};                 // of what does not fit: nothing is said of it
};

}  // namespace presum::checks
