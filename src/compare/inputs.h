// SPDX-License-Identifier: Apache-2.0
// Compares a step's inputs: settings, samples, states of random generators.
#pragma once

#include <set>

#include "compare/step_pair.h"

namespace presum::compare {

using FingerprintKinds = std::set<std::uint32_t>;  // kinds of fingerprints

// Compares the settings that ranks reported at the step: sampler, dataset, modes, optimizer,
// dtypes, flags.
StageResult compare_configuration(const StepPair& pair);
// Compares rows rank by rank or, if the world sizes differ, all rows together; their order; and the
// other tensors of the batches. Without a common salt, compares only the positions in the dataset.
StageResult compare_data(const StepPair& pair);
StageResult compare_random_generators(const StepPair& pair, const FingerprintKinds& ignored);
// The generators of NumPy and Python that differ. If they differ at the first step, they were not
// seeded, which is harmless because torch does not draw from them.
FingerprintKinds unseeded_generators(const StepPair& pair);

}  // namespace presum::compare
