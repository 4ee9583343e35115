// SPDX-License-Identifier: Apache-2.0
// manifest-mismatch.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>

#include "diagnose/step_context.h"

namespace presum::diagnose {

// What the data set says of itself, and whether an index means the same sample on every worker.
// Both need a sampler that splits one data set among the workers.
class Manifest {
 public:
  void update(const StepContext& context, SignalLog& log);

 private:
  struct Drawn {
    std::uint64_t row = 0;
    std::uint32_t rank = 0;
  };
  // Draws of the same index, by two workers or by one.
  struct Pair {
    std::uint64_t agreed = 0;
    std::uint64_t conflicts = 0;
    std::uint64_t first_conflict = 0;  // step
    std::uint64_t agreed_since = 0;    // then
    std::uint64_t steps = 0;           // with a conflict
    std::uint64_t last_conflict = 0;   // step
  };
  struct Odd {
    Blame blame;
    std::uint64_t conflicts = 0;
    std::uint64_t first_step = 0;
  };
  void compare_facts(const StepContext& context, SignalLog& log) const;
  void compare_rows(const StepContext& context, SignalLog& log);
  void thin();
  void draw(std::uint64_t index, const Drawn& now, std::uint64_t step);
  void count(Pair& pair, bool agree, std::uint64_t step);
  bool may_augment(const Ranks& many) const;
  Ranks alike(const Ranks& all) const;
  bool now_and_then(std::uint32_t rank) const;
  Odd odd(const Ranks& all) const;

  std::unordered_map<std::uint64_t, Drawn> drawn_;  // by index; at most 16,384
  std::uint64_t mask_ = 0;                          // of the hashes of the indices that are kept
  std::map<std::uint32_t, Pair> own_;               // by rank: draws by the same worker
  std::map<std::uint32_t, Pair> drew_;              // by rank: of what others had drawn
  std::map<std::uint32_t, Pair> before_others_;     // by rank: what others drew after it
  std::map<std::pair<std::uint32_t, std::uint32_t>, Pair> pairs_;  // by rank; at most 65,536
};

}  // namespace presum::diagnose
