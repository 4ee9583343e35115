// SPDX-License-Identifier: Apache-2.0
// worker-outlier, pair-too-similar, too-consistent, loss-event, token-imbalance.
#pragma once

#include <cstdint>

#include "diagnose/batch_sizes.h"
#include "diagnose/static_data.h"
#include "diagnose/step_context.h"
#include "diagnose/token_shares.h"

namespace presum::diagnose {

// Whether the signal is of ranks whose gradients pointed away from the others'.
bool is_turned_away(const Signal& signal);

class Statistics {
 public:
  void update(const StepContext& context, SignalLog& log);

 private:
  void cover(const StepContext& context, SignalLog& log);
  void report(const StepContext& context, const detect::Alarm& alarm, SignalLog& log) const;
  static void extend(const StepContext& context, const detect::Alarm& alarm, SignalLog& log);
  void report_tokens(const detect::Alarm& alarm, const Signal& outlier, SignalLog& log) const;
  bool expected(const detect::Alarm& alarm) const;
  void watch_tokens(const StepContext& context, SignalLog& log);

  StaticData data_;
  BatchSizes sizes_;
  TokenShares tokens_;
  std::uint64_t token_steps_ = 0;
  double cv_sum_ = 0;
  double gap_sum_ = 0;  // |mean of the workers' losses - mean over tokens|
  std::uint64_t gap_steps_ = 0;
  std::uint64_t losses_ = 0;  // steps in which losses were watched
};

}  // namespace presum::diagnose
