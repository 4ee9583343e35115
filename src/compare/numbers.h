// SPDX-License-Identifier: Apache-2.0
// Compares a step's numbers: parameters before it, losses, gradients. Two NaN are equal.
#pragma once

#include <span>

#include "compare/step_pair.h"

namespace presum::compare {

StageResult compare_parameters(const StepPair& pair);
StageResult compare_losses(const StepPair& pair);
// Fingerprints of each worker's own gradient, and which layers they differ in.
StageResult compare_gradients(const StepPair& pair);
StageResult compare_reduction(const StepPair& pair);
// Parameters after the last step, by replica. `pair` is that of the last common step.
StageResult compare_final_parameters(const StepPair& pair, std::span<const FinalStateRecord> a,
                                     std::span<const FinalStateRecord> b);

}  // namespace presum::compare
