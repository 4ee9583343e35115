// SPDX-License-Identifier: Apache-2.0
// Signals become findings: one a cause.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "diagnose/signal_log.h"

namespace presum::diagnose {

// Whether two signals have one cause: one check explains the other, their ranks overlap, and the
// effect fits the cause in time; or ranks that the cause sets apart leave a pair of others that
// look alike. An effect may be seen up to 50 steps before its cause, whose hashes take turns, and
// up to 50 after the cause was last seen.
bool same_cause(const Signal& a, const Signal& b);

// Places in `signals` of those with one cause, the head first. Each signal is
// in exactly one; empty for none.
std::vector<std::vector<std::size_t>> merge(std::span<const Signal> signals);

// A finding without segment, module, shard and hosts. REQUIRES: `members` is of merge().
Finding finding_of(std::span<const Signal> signals, std::span<const std::size_t> members);

}  // namespace presum::diagnose
