// SPDX-License-Identifier: Apache-2.0
// rank-ended.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "diagnose/step_context.h"

namespace presum::diagnose {

// Ranks that ended while the job had not, and what is known of it.
struct RankEnd {
  Ranks ranks;
  bool everyone = false;
  std::uint64_t step = 0;  // the last that was heard of them
  Severity severity = Severity::kCritical;
  std::string title;  // with "{Ranks}" in the place of the ranks
  Evidence evidence;
  bool operator==(const RankEnd&) const = default;
};

class RankEnded {
 public:
  void update(const StepContext& context, SignalLog& log);
  // A rank has left.
  void farewell(std::uint32_t rank, const FinalState& last, const Roster& roster, SignalLog& log);
  // Ranks tell where they stand, and so how they end.
  void beats() { beats_ = true; }
  // What is known now, in the place of what was known before.
  static void report(const std::optional<RankEnd>& end, SignalLog& log);

 private:
  bool beats_ = false;
  std::uint32_t ranks_ = 0;  // that are expected
  Ranks left_;
};

}  // namespace presum::diagnose
