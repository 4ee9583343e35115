// SPDX-License-Identifier: Apache-2.0
// The step and stage at which two runs of one model begin to differ.
#pragma once

#include <optional>

#include "compare/compare.h"
#include "compare/stage_history.h"

namespace presum::compare {

// Chooses the stage whose first difference comes first, and fills in what is known of that step.
// Random generators alone are no difference of the runs: nothing may have been drawn from them.
// Neither are they one if a step came out equal all the same.
void choose_first(ModelComparison& model, const StageHistory& history);

// Whether the first difference of `stage` comes before that of `than` (none: it does); of two at
// one step the earlier stage counts.
bool differs_earlier(const ModelComparison& model, Stage stage, const std::optional<Stage>& than);

}  // namespace presum::compare
