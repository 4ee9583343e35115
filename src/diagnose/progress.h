// SPDX-License-Identifier: Apache-2.0
// no-progress.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "diagnose/signal_log.h"
#include "diagnose/step_context.h"

namespace presum::diagnose {

// Optimiser steps with a learning rate above zero, on gradients that are not zero, after which
// every part of the model that is hashed again is what it was. What workers hold differently is
// parameter-desync's: one worker's hashes are followed.
class NoProgress {
 public:
  void update(const StepContext& context, SignalLog& log);

 private:
  struct Held {
    std::uint64_t step = 0;  // at which it was first seen
    std::uint64_t look = 0;  // at which it was last seen
  };
  bool trains(const WorkerRecord& worker);
  void follow(const WorkerRecord& worker, std::uint64_t step);
  void begin(const WorkerRecord& worker);
  void report(const StepContext& context, SignalLog& log) const;

  std::unordered_map<std::uint64_t, Held> held_;  // by group and value
  std::uint64_t looks_ = 0;
  std::uint64_t unchanged_ = 0;  // records in a row
  std::uint64_t repeats_ = 0;    // values seen again in them
  std::uint64_t first_step_ = 0;
  std::uint64_t steps_before_ = 0;  // of the optimiser, at their beginning
  std::uint64_t steps_ = 0;         // at the last record
  bool hashed_ = false;             // some parameter
};

}  // namespace presum::diagnose
