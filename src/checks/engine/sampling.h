// SPDX-License-Identifier: Apache-2.0
// What workers say of their samplers and data sets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "checks/engine/roster.h"
#include "presum/step_record.h"

namespace presum::checks {

// Whether every worker draws from a sampler that splits one data set among several replicas. Then
// the workers' indices mean the same samples, and their settings must match.
bool distributed_sampling(const StepRecord& record);
// Whether some worker's sampler may draw a sample twice on purpose: the fact "sampler" says so.
bool draws_with_replacement(const Roster& roster);
// Whether some worker's sampler repeats samples by design, as those of GRPO and of repeated
// augmentation do: the fact "sampler" says so, or every sample of the step is there equally often,
// more than once, and some worker has one several times itself. Workers that all read the same once
// are not that.
bool repeats_by_design(const StepRecord& record, const Roster& roster);
// Whether a sampler goes on in the middle of a pass, as after a restart.
bool skips(std::string_view sampler);
// Samplers that are about no more samples than they draw in a pass.
bool draws_some(std::string_view sampler);
// Whether a sampler (its description, and its own length: 0 where that is not known) deals every
// sample, as torch's own and Accelerate's around them do.
bool deals_all(std::string_view sampler, std::uint64_t own, std::uint64_t length);
// Whether samplers are known to draw no sample twice in a pass. One of the program's own that draws
// its own samples again as often as others' draws with replacement, or without end.
bool deals_each_once(const Roster& roster);
// Which data set a worker reads: a program may take loaders in turn.
std::uint64_t data_of(const WorkerRecord& worker);
// The same, and which positions of it: within them an index is a place of its own.
std::uint64_t share_of_data(const WorkerRecord& worker);
// Rows that it read, at least.
std::uint64_t rows_of(const WorkerRecord& worker);
// Ranks that the samplers divide the data among, where these are all of the job's, more than the
// data-parallel group has; else 0.
std::size_t divides_among_job(const StepRecord& record, const Roster& roster);
// k > 1 where neighboring ranks share one place of the sampler, k by k, and the samplers have as
// many replicas as there are such groups: sequence or tensor parallelism inside the group. Else 1.
std::size_t ranks_per_place(const StepRecord& record);
// Whether they do so by design: then some of a place have gradients of their own, as far as known.
bool shares_places(const StepRecord& record);

}  // namespace presum::checks
