// SPDX-License-Identifier: Apache-2.0
// How the segments of a run are connected, and how many steps they add up to.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "presum/run_log.h"

namespace presum::judge {

// The number of recorded steps of a run, wherever presum reports one. For each model and
// data-parallel group, counts the steps of all segments; a segment that continues from an earlier
// step replaces the steps after it. So steps that a restart repeats count once, and trainings that
// do not continue each other add up. Returns the largest count over models and groups, because they
// train at the same time. A segment that continues from one that is not in `counts` counts alone.
// REQUIRES: both arguments ascend by model.
std::uint64_t training_steps(std::span<const StepCount> counts,
                             std::span<const Continuation> continuations);

// "continues from step 60 of segment 1: detectors keep what they learned in 60 steps"; "detectors
// start over: ...".
std::string outcome_text(const Continuation& continuation);
// "segment 2 continues from ...": one per distinct outcome in a segment; names the model if it is
// not the first.
std::vector<std::string> continuation_texts(std::span<const Continuation> continuations);

}  // namespace presum::judge
