// SPDX-License-Identifier: Apache-2.0
// no-progress.
#pragma once

#include <cstdint>
#include <limits>
#include <unordered_map>

#include "diagnose/signal_log.h"
#include "diagnose/step_context.h"

namespace presum::diagnose {

// Optimiser steps with a learning rate above zero, on gradients that are not zero, after which
// every part of the model, or of a layer, that is hashed again is what it was; or after which most
// elements of 16 bits are. What workers hold differently is parameter-desync's: one worker's hashes
// are followed.
class NoProgress {
 public:
  void update(const StepContext& context, SignalLog& log);

 private:
  struct Held {
    std::uint64_t step = 0;  // at which it was first seen
    std::uint64_t look = 0;  // at which it was last seen
  };
  // A layer whose parts were what they were whenever they were hashed.
  struct Stand {
    std::uint64_t since = 0;    // the look at which that began
    std::uint64_t repeats = 0;  // values seen again since
    std::uint64_t first_step = 0;
    std::uint64_t rested = 0;  // the last look at which nothing was to move it
  };
  bool trains(const WorkerRecord& worker);
  void follow(const WorkerRecord& worker, std::uint64_t step);
  void begin(const WorkerRecord& worker);
  void stand(const StateHash& state, const Held& held, bool fresh);
  void report(const StepContext& context, SignalLog& log) const;
  void look_at_resting(const StepContext& context);
  void report_layers(const StepContext& context, SignalLog& log) const;
  void follow_shares(const StepContext& context, SignalLog& log);

  std::unordered_map<std::uint64_t, Held> held_;     // by group and value
  std::unordered_map<std::uint64_t, Stand> stands_;  // by group; at most 65,536
  std::uint64_t rounded_ = 0;                        // samples in a row of which most stood still
  std::uint64_t rounded_since_ = 0;
  double sampled_rate_ =
      std::numeric_limits<double>::infinity();  // the learning rate at the last of them
  std::uint64_t looks_ = 0;
  std::uint64_t unchanged_ = 0;  // records in a row
  std::uint64_t repeats_ = 0;    // values seen again in them
  std::uint64_t first_step_ = 0;
  std::uint64_t steps_before_ = 0;  // of the optimiser, at their beginning
  std::uint64_t steps_ = 0;         // at the last record
  bool hashed_ = false;             // some parameter
};

}  // namespace presum::diagnose
