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

// A generator that had the same state on all ranks until it changed on some ranks only. A shuffle
// that uses it then has a different order on these ranks.
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
  // The first one; none if no generator was equal for three records, or none of these parted.
  const std::optional<PartedGenerator>& first() const { return first_; }

 private:
  struct State {
    std::map<std::uint32_t, std::uint64_t> before;  // by rank, at the last record
    std::uint64_t equal = 0;                        // records in a row
    std::uint64_t step = 0;                         // of the last record
  };
  void see(const StepRecord& record, FingerprintKind kind, const char* name, State& state);

  std::array<State, 3> states_;
  std::optional<PartedGenerator> first_;
};

}  // namespace presum::checks
