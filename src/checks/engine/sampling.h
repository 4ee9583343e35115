// SPDX-License-Identifier: Apache-2.0
// What ranks report about their samplers and datasets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "checks/engine/roster.h"
#include "presum/step_record.h"

namespace presum::checks {

// Whether every rank draws from a sampler that splits one dataset among several replicas. If so,
// equal indices mean equal samples, and the settings must match.
bool distributed_sampling(const StepRecord& record);
// Whether some rank's sampler may draw a sample twice on purpose, by the fact "sampler".
bool draws_with_replacement(const Roster& roster);
// Whether some rank's sampler repeats samples by design, as those of GRPO and of repeated
// augmentation do: the fact "sampler" says so, or every sample of the step occurs equally often,
// more than once, and some rank has one of them several times itself. Ranks that all read the same
// samples once do not count.
bool repeats_by_design(const StepRecord& record, const Roster& roster);
// Whether a sampler resumes in the middle of a pass, as after a restart.
bool skips(std::string_view sampler);
// Samplers whose population is what they draw in a pass.
bool draws_some(std::string_view sampler);
// Whether a sampler (its description, and its own length: 0 if unknown) deals every sample, as
// torch's own and Accelerate's wrappers around them do.
bool deals_all(std::string_view sampler, std::uint64_t own, std::uint64_t length);
// Whether samplers are known to draw no sample twice in a pass. A custom sampler that repeats its
// own samples as often as others' draws with replacement, or endlessly.
bool deals_each_once(const Roster& roster);
// The dataset that a rank reads: a program may alternate between loaders.
std::uint64_t data_of(const WorkerRecord& worker);
// The same, with the positions that the dataset holds: an index is unique within them.
std::uint64_t share_of_data(const WorkerRecord& worker);
// A lower bound of the rows that it read.
std::uint64_t rows_of(const WorkerRecord& worker);
// The number of ranks that the samplers divide the data among, if these are all ranks of the job
// and more than the data-parallel group has; 0 otherwise.
std::size_t divides_among_job(const StepRecord& record, const Roster& roster);
// k > 1 if neighboring ranks share a sampler position in groups of k, and the samplers have as many
// replicas as there are groups: sequence or tensor parallelism inside the group. 1 otherwise.
std::size_t ranks_per_place(const StepRecord& record);
// Whether ranks share positions by design: as far as known, some of a group have different
// gradients.
bool shares_places(const StepRecord& record);

}  // namespace presum::checks
