// SPDX-License-Identifier: Apache-2.0
// Ranks that have other numbers of targets (or samples) than the others, and weight their losses
// by them.
#pragma once

#include <cstdint>

#include "checks/data/token_shares.h"
#include "checks/engine/step_context.h"
#include "detect/detector.h"

namespace presum::checks {

// The mean gradient of n targets is a common gradient and noise that falls with the square root of
// n. Compared with the others', whose number is n times that of the rank, its norm is therefore
// between 1 and sqrt(n) times as large, and its cosine similarity as much smaller.
class OtherSizes {
 public:
  void see(const StepRecord& record);
  // Whether the rank's norm or direction is no other than expected from its number of targets.
  bool explain(const detect::Alarm& alarm) const;

 private:
  // The rank's recent cosine similarity by that of the others.
  double cosine_ratio(std::uint32_t replica) const;

  TokenShares shares_;
  PerWorker<double> cosines_;  // means over recent steps
  Streak weighted_;            // losses were weighted by numbers of targets
};

}  // namespace presum::checks
