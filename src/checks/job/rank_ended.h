// SPDX-License-Identifier: Apache-2.0
// rank-ended.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "checks/engine/step_context.h"

namespace presum::checks {

// Ranks that ended before the job did, and what is known about their end.
struct RankEnd {
  using ByRank = std::vector<std::pair<std::string, std::string>>;  // "rank 3" and a text

  Ranks ranks;
  bool everyone = false;
  Severity severity = Severity::kCritical;
  std::string how;                         // "was killed by SIGKILL", for one rank
  std::optional<std::uint64_t> last_step;  // the last known step; none: before the first
  bool left_in_order = false;              // left in order, but before the others
  ByRank last_seen;                        // the program's lines, for some of the ranks
  ByRank then;                             // how other ranks ended, for some of them

  // "were killed by SIGKILL after step 40": the part of the sentence after the ranks.
  std::string words() const;
  std::uint64_t key() const;
  bool operator==(const RankEnd&) const = default;
  static constexpr std::tuple kFields{
      field("how", &RankEnd::how), field("last_step", &RankEnd::last_step),
      field("left_in_order", &RankEnd::left_in_order), field("last_seen", &RankEnd::last_seen),
      field("then", &RankEnd::then)};
};

std::string sentence(const RankEnd& seen, const Who& who);

// Replaces the earlier finding with what is known now.
void report_end(const std::optional<RankEnd>& end, SignalLog& log);

}  // namespace presum::checks
