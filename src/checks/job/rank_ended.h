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

// Ranks that ended while the job had not, and what is known of it.
struct RankEnd {
  using ByRank = std::vector<std::pair<std::string, std::string>>;  // "rank 3" and what

  Ranks ranks;
  bool everyone = false;
  Severity severity = Severity::kCritical;
  std::string how;                         // "was killed by SIGKILL", of one rank
  std::optional<std::uint64_t> last_step;  // that was heard of them; none: before their first
  bool left_in_order = false;              // but before the others
  ByRank last_seen;                        // the program's lines, of some of them
  ByRank then;                             // how others ended, some of them

  // "were killed by SIGKILL after step 40": what of it is news.
  std::string words() const;
  std::uint64_t key() const;
  bool operator==(const RankEnd&) const = default;
  static constexpr std::tuple kFields{
      field("how", &RankEnd::how), field("last_step", &RankEnd::last_step),
      field("left_in_order", &RankEnd::left_in_order), field("last_seen", &RankEnd::last_seen),
      field("then", &RankEnd::then)};
};

std::string sentence(const RankEnd& seen, const Who& who);

// What is known now, in the place of what was known before.
void report_end(const std::optional<RankEnd>& end, SignalLog& log);

}  // namespace presum::checks
