// SPDX-License-Identifier: Apache-2.0
// no-progress.
#pragma once

#include <cstdint>
#include <limits>
#include <unordered_map>

#include "diagnose/step_context.h"

namespace presum::diagnose {

// Optimizer steps with a learning rate above zero, on gradients that are not zero, after which
// every part of the model, or of a layer, that is hashed again is what it was; or after which most
// elements of 16 bits are; or of optimizers that hold none of the model's parameters where none
// does. What workers hold differently is parameter-desync's: one worker's hashes are followed.
class NoProgress {
 public:
  void update(const StepContext& context, SignalLog& log);

 private:
  struct Held {
    std::uint64_t step = 0;     // at which it was first seen
    std::uint64_t look = 0;     // at which it was last seen
    std::uint64_t trained = 0;  // records with a step before that
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
  void begin();
  bool stands_still() const;
  void tell_what_was_seen(SignalLog& log) const;
  void stand(const StateHash& state, const Held& held, bool fresh);
  void report(const StepContext& context, SignalLog& log) const;
  void look_at_resting(const StepContext& context);
  void report_layers(const StepContext& context, SignalLog& log) const;
  void follow_shares(const StepContext& context, SignalLog& log);
  void follow_vain(const StepContext& context, SignalLog& log);

  std::unordered_map<std::uint64_t, Held> held_;     // by group and value
  std::unordered_map<std::uint64_t, Stand> stands_;  // by group; at most 65,536
  Streak rounded_;                                   // samples of which most stood still
  double sampled_rate_ =
      std::numeric_limits<double>::infinity();  // the learning rate at the last of them
  std::uint64_t looks_ = 0;
  std::uint64_t unchanged_ = 0;  // records in a row
  std::uint64_t repeats_ = 0;    // values seen again in them
  std::uint64_t first_step_ = 0;
  std::uint64_t trained_ = 0;         // records with a step that ought to change parameters
  std::uint64_t trained_before_ = 0;  // likewise, when something changed last
  std::uint64_t taken_ = 0;           // steps since
  std::uint64_t steps_ = 0;           // of the optimizer, at the last record
  std::uint64_t vain_steps_ = 0;
  bool in_vain_ = false;  // some were
  bool hashed_ = false;   // some parameter
  bool moved_ = false;    // some parameter, as far as hashes tell
};

}  // namespace presum::diagnose
