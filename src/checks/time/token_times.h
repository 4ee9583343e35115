// SPDX-License-Identifier: Apache-2.0
// Whether the time that workers compute for follows the tokens of their batches.
#pragma once

#include <cstdint>

#include "checks/engine/per_worker.h"
#include "checks/time/phase_means.h"
#include "presum/step_record.h"

namespace presum::checks {

// A regression of the logarithms within each step, over about its last hundred.
class TokenTimes {
 public:
  // REQUIRES: all_timed(record). Steps whose token counts are not all known are left out.
  void see(const StepRecord& record);
  // Whether the counts of a step were known.
  bool knows() const { return weight_ > 0; }
  // Steps in which the counts differed.
  std::uint64_t steps() const { return steps_; }
  double correlation() const;
  // The standard deviation of the logarithm of the counts over workers.
  double spread() const;
  // How many seconds a step longer than the others' a worker computes because of its tokens; 0
  // where times do not follow tokens.
  double explained(std::uint32_t replica) const;

 private:
  struct Share {
    RunningMean log_tokens;  // less the mean over workers
    RunningMean computes;    // seconds of the others' mean
  };
  double xx_ = 0;
  double xy_ = 0;
  double yy_ = 0;
  double weight_ = 0;  // of the sums, in workers
  std::uint64_t steps_ = 0;
  PerWorker<Share> shares_;
};

}  // namespace presum::checks
