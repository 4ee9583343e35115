// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "presum/records.h"
#include "step/machine.h"

namespace presum::step {

// Which steps are recorded, and of which the reduced gradient is read: the same on all workers.
class Cadence {
 public:
  Cadence(std::uint64_t every, std::uint64_t reduced_every)
      : every_(every), reduced_every_(reduced_every) {}

  // Reduced steps by their own count, others by theirs, which goes on within it.
  bool on_grid(const StepNumber& number) const {
    const std::uint64_t window = number.is_reduced() ? 0 : number.window;
    return (number.reductions + window) % every_ == 0;
  }
  // And the first of all that was not reduced.
  bool records(const StepNumber& number) const {
    return on_grid(number) || (!number.is_reduced() && number.unreduced == 0);
  }
  // Whether the coming step may be one that is recorded.
  bool may_record_next(const Machine& machine) const {
    return on_grid(machine.next_reduced()) || (machine.unreduced() > 0 && on_grid(machine.next()));
  }
  // Of the reductions that are recorded, the first of every so many.
  bool reads_reduced(std::uint64_t reductions) const {
    return reductions < every_ ||
           (reductions - every_) / reduced_every_ != reductions / reduced_every_;
  }

 private:
  std::uint64_t every_;
  std::uint64_t reduced_every_;
};

}  // namespace presum::step
