// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "presum/run_log.h"

namespace presum::judge {

// Whether the process that records a segment is known to be gone: where the lowest rank, which
// records, was a process of this host, and its number is another one's now or nobody's. False where
// nothing is known. Reads /proc.
bool recorder_is_gone(const RunLog& log, std::uint32_t segment);

}  // namespace presum::judge
