// SPDX-License-Identifier: Apache-2.0
// What a step computes: parameters before it, losses, gradients. Two NaN are equal.
#pragma once

#include <span>

#include "compare/pair.h"

namespace presum::compare {

Looked look_at_parameters(const StepPair& pair);
Looked look_at_losses(const StepPair& pair);
// Fingerprints of each worker's own gradient, and which layers they differ in.
Looked look_at_gradients(const StepPair& pair);
Looked look_at_reduction(const StepPair& pair);
// Parameters after the last step, by replica. `pair` is that of the last common step.
Looked look_at_final(const StepPair& pair, std::span<const FinalStateRecord> a,
                     std::span<const FinalStateRecord> b);

}  // namespace presum::compare
