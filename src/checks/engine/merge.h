// SPDX-License-Identifier: Apache-2.0
// Signals become findings: one a cause.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "checks/engine/signal_log.h"

namespace presum::checks {

// Places in `signals` of those with one cause, the head first. Each signal is
// in exactly one; empty for none.
std::vector<std::vector<std::size_t>> merge(std::span<const Signal> signals);

// A finding without segment, model_index, dp_group and hosts. REQUIRES: `members` is of merge().
// `world`: ranks of the job, of which the model's may be a part; 0: not known.
Finding finding_of(std::span<const Signal> signals, std::span<const std::size_t> members,
                   std::size_t world = 0);

}  // namespace presum::checks
