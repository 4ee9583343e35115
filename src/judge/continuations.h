// SPDX-License-Identifier: Apache-2.0
// How the segments of a run belong together, and how many steps that makes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "presum/run_log.h"

namespace presum::judge {

// The recorded steps of a run, wherever presum says how many there are: of each model and
// data-parallel group, those of all its segments, of which one that goes on from an earlier step
// takes the place of what came after that; of all models and groups the most, as they train at the
// same time. So steps that a restart did again count once, and trainings that do not go on from
// each other add up. A segment that goes on from one that is not among them counts alone. REQUIRES:
// ascending by model, both.
std::uint64_t training_steps(std::span<const StepCount> counts,
                             std::span<const Continuation> continuations);

// "goes on from step 60 of segment 1: detectors keep what they learned in 60 steps"; "detectors
// begin anew: ...".
std::string outcome_text(const Continuation& continuation);
// "segment 2 goes on from ...": one for each outcome in a segment; with the model where it is not
// that of the segment's first.
std::vector<std::string> continuation_texts(std::span<const Continuation> continuations);

}  // namespace presum::judge
