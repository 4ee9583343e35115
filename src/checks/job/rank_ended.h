// SPDX-License-Identifier: Apache-2.0
// rank-ended.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "checks/engine/step_context.h"

namespace presum::checks {

// Ranks that ended while the job had not, and what is known of it.
struct RankEnd {
  Ranks ranks;
  bool everyone = false;
  std::uint64_t step = 0;  // the last that was heard of them
  Severity severity = Severity::kCritical;
  std::string title;  // with "{Ranks}" in the place of the ranks
  Values evidence;
  bool operator==(const RankEnd&) const = default;
};

// What is known now, in the place of what was known before.
void report_end(const std::optional<RankEnd>& end, SignalLog& log);

}  // namespace presum::checks
