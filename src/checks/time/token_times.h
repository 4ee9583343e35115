// SPDX-License-Identifier: Apache-2.0
// Whether the computing time of ranks follows the tokens of their batches.
#pragma once

#include <cstdint>

#include "checks/engine/per_worker.h"
#include "checks/time/phase_means.h"
#include "presum/step_record.h"

namespace presum::checks {

// A regression of the logarithms within each step, over about the last hundred steps.
class TokenTimes {
 public:
  // REQUIRES: all_timed(record). Skips steps in which some token counts are unknown.
  void see(const StepRecord& record);
  // Whether the counts of some step were known.
  bool knows() const { return weight_ > 0; }
  // Steps in which the counts differed.
  std::uint64_t steps() const { return steps_; }
  double correlation() const;
  // The standard deviation of the logarithm of the counts over ranks.
  double spread() const;
  // The extra seconds per step that a rank computes because of its tokens; 0 if times do not follow
  // tokens.
  double explained(std::uint32_t replica) const;

 private:
  struct Share {
    RunningMean log_tokens;  // relative to the mean over ranks
    RunningMean computes;    // relative to the others' mean seconds
  };
  double xx_ = 0;
  double xy_ = 0;
  double yy_ = 0;
  double weight_ = 0;  // of the sums, in ranks
  std::uint64_t steps_ = 0;
  PerWorker<Share> shares_;
};

}  // namespace presum::checks
