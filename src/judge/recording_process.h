// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "presum/run_log.h"

namespace presum::judge {

// Whether the process that records a segment is known to be gone: the lowest rank, which records,
// ran on this host, and its process id is now unused or belongs to another process. False if
// unknown. Reads /proc.
bool recorder_is_gone(const RunLog& log, std::uint32_t segment);

}  // namespace presum::judge
