// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "presum/records.h"
#include "step/machine.h"

namespace presum::step {

// Decides which steps are recorded and which of those have their reduced gradient read. All ranks
// decide alike.
class Cadence {
 public:
  Cadence(std::uint64_t every, std::uint64_t reduced_every)
      : every_(every), reduced_every_(reduced_every) {}

  // A reduced step counts by its reduction number; an unreduced one by the reductions plus its
  // window number.
  bool on_grid(const StepNumber& number) const {
    const std::uint64_t window = number.is_reduced() ? 0 : number.window;
    return (number.reductions + window) % every_ == 0;
  }
  // Also records the first unreduced step of the run.
  bool records(const StepNumber& number) const {
    return on_grid(number) || (!number.is_reduced() && number.unreduced == 0);
  }
  // Whether the next step may be recorded.
  bool may_record_next(const Machine& machine) const {
    return on_grid(machine.next_reduced()) || (machine.unreduced() > 0 && on_grid(machine.next()));
  }
  // True for the first recorded reduction at or after each multiple of `reduced_every`, or for the
  // one after that if it was postponed.
  bool reads_reduced(std::uint64_t reductions) const {
    if (postponed_ && reductions == *postponed_) return false;
    return reductions < every_ || (postponed_ && reductions == *postponed_ + every_) ||
           (reductions - every_) / reduced_every_ != reductions / reduced_every_;
  }
  void postpone(std::uint64_t reductions) { postponed_ = reductions; }

 private:
  std::uint64_t every_;
  std::uint64_t reduced_every_;
  std::optional<std::uint64_t> postponed_;
};

}  // namespace presum::step
