// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "checks/engine/split.h"
#include "presum/step_record.h"

namespace presum::checks {

// A generator that all ranks had in one state, until that of some changed and the others' did not:
// an order that is shuffled by it is then another one on these ranks.
struct PartedGenerator {
  std::string generator;  // "torch"
  Ranks changed;
  std::uint64_t equal_until = 0;
  std::uint64_t step = 0;
};

// Not synchronized.
class PartedGenerators {
 public:
  // REQUIRES: ascending steps.
  void see(const StepRecord& record);
  // The first; none where no generator was equal for three records, or none of these has parted.
  const std::optional<PartedGenerator>& first() const { return first_; }

 private:
  struct State {
    std::map<std::uint32_t, std::uint64_t> before;  // by rank, at the last record
    std::uint64_t equal = 0;                        // records in a row
    std::uint64_t step = 0;                         // of the last one
  };
  void see(const StepRecord& record, FingerprintKind kind, const char* name, State& state);

  std::array<State, 3> states_;
  std::optional<PartedGenerator> first_;
};

}  // namespace presum::checks
