// SPDX-License-Identifier: Apache-2.0
// sampler-mismatch.
#pragma once

#include <string>

#include "diagnose/signal_log.h"
#include "diagnose/step_context.h"

namespace presum::diagnose {

// Whether every worker draws from a sampler that splits one data set among several replicas. Then
// the workers' indices mean the same samples, and their settings must match.
bool distributed_sampling(const StepRecord& record);
// What to do where some worker's sampler is not one that splits the data; empty where none is so.
std::string undivided_remedy(const StepRecord& record);
// Whether some worker's sampler may draw a sample twice on purpose: the fact "sampler" says so.
bool draws_with_replacement(const Roster& roster);

// Samplers that are not distributed are not judged: workers may read shards of their own.
class Sampler {
 public:
  static void update(const StepContext& context, SignalLog& log);
};

}  // namespace presum::diagnose
