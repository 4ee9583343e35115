// SPDX-License-Identifier: Apache-2.0
// slow-worker, slow-node, data-starved, uneven-batches.
#pragma once

#include <cstdint>
#include <map>

#include "diagnose/phase_means.h"
#include "diagnose/step_context.h"
#include "diagnose/token_times.h"

namespace presum::diagnose {

// Who makes the others wait, in what, and what it costs: docs/time.md.
class SlowWorkers {
 public:
  void update(const StepContext& context, SignalLog& log);

 private:
  void report(const StepContext& context, const detect::Alarm& alarm, SignalLog& log);
  void report_node(const StepContext& context, const Signal& slow, SignalLog& log);
  void watch_data(const StepContext& context, SignalLog& log) const;
  void watch_batches(const StepContext& context, SignalLog& log) const;

  PhaseMeans means_;
  TokenTimes tokens_;
  std::map<std::uint32_t, Check> said_;  // by rank; at most 65,536
};

}  // namespace presum::diagnose
