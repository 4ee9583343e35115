// SPDX-License-Identifier: Apache-2.0
// sampler-mismatch.
#pragma once

#include <cstddef>
#include <string>

#include "checks/engine/step_context.h"

namespace presum::checks {

// Whether every worker draws from a sampler that splits one data set among several replicas. Then
// the workers' indices mean the same samples, and their settings must match.
bool distributed_sampling(const StepRecord& record);
// What to do where some worker's sampler is not one that splits the data; empty where none is so.
std::string undivided_remedy(const StepRecord& record);
// Whether some worker's sampler may draw a sample twice on purpose: the fact "sampler" says so.
bool draws_with_replacement(const Roster& roster);
// Whether some worker's sampler repeats samples by design, as those of GRPO and of repeated
// augmentation do: the fact "sampler" says so, or every sample of the step is there equally often,
// more than once, and some worker has one several times itself. Workers that all read the same once
// are not that.
bool repeats_by_design(const StepContext& context);
// Which data set a worker reads: a program may take loaders in turn.
std::uint64_t data_of(const WorkerRecord& worker);
// k > 1 where neighbouring ranks share one place of the sampler, k by k, and the samplers have as
// many replicas as there are such groups: sequence or tensor parallelism inside the group. Else 1.
std::size_t ranks_per_place(const StepRecord& record);
// Whether they do so by design: then some of a place have gradients of their own, as far as known.
bool shares_places(const StepRecord& record);
// What is said where ranks share their data in groups of `each`.
Signal shared_in_groups(Check check, const StepContext& context, std::size_t each);

}  // namespace presum::checks
