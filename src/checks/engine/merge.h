// SPDX-License-Identifier: Apache-2.0
// Turns signals into findings, one per cause.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "checks/engine/signal_log.h"

namespace presum::checks {

// Groups of indices into `signals` with one cause each, the head first. Each signal is in exactly
// one group; empty for no signals.
std::vector<std::vector<std::size_t>> merge(std::span<const Signal> signals);

// A finding without segment, model_index, dp_group and hosts. REQUIRES: `members` is from merge().
// `world`: ranks of the job, of which the model may have a part; 0: unknown.
Finding finding_of(std::span<const Signal> signals, std::span<const std::size_t> members,
                   std::size_t world = 0);

}  // namespace presum::checks
