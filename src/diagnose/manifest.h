// SPDX-License-Identifier: Apache-2.0
// manifest-mismatch.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>

#include "diagnose/signal_log.h"
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
  void compare_facts(const StepContext& context, SignalLog& log) const;
  void compare_rows(const StepContext& context, SignalLog& log);
  void thin();
  void draw(std::uint64_t index, std::uint64_t row, std::uint32_t rank);
  Blame blame(const StepRecord& record) const;

  std::unordered_map<std::uint64_t, Drawn> drawn_;  // by index; at most 16,384
  std::uint64_t mask_ = 0;                          // of the hashes of the indices that are kept
  std::uint64_t own_agreed_ = 0;                    // draws of the same index by the same worker
  std::uint64_t own_conflicts_ = 0;
  std::uint64_t agreed_ = 0;  // by different workers
  std::uint64_t conflicts_ = 0;
  std::map<std::uint32_t, std::uint64_t> conflicts_of_;  // by rank
};

}  // namespace presum::diagnose
