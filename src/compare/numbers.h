// SPDX-License-Identifier: Apache-2.0
// Compares a step's numbers: parameters before it, losses, gradients. Two NaN are equal.
#pragma once

#include "compare/step_pair.h"

namespace presum::compare {

StageResult compare_parameters(const StepPair& pair);
// Equal up to the rounding of a gradient in 32 bits.
StageResult compare_token_weights(const StepPair& pair);
StageResult compare_losses(const StepPair& pair);
// Compares the fingerprints of each rank's own gradient, and finds the layers that differ.
StageResult compare_gradients(const StepPair& pair);
StageResult compare_reduction(const StepPair& pair);

}  // namespace presum::compare
