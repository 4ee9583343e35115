// SPDX-License-Identifier: Apache-2.0
// parameter-desync, buffer-desync, state-desync.
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <unordered_map>
#include <vector>

#include "diagnose/step_context.h"

namespace presum::diagnose {

class States {
 public:
  void update(const StepContext& context, SignalLog& log);
  // Last hashes are compared between workers that took the same number of optimiser steps, if they
  // took any, as soon as more than half of all agree or all have left.
  void farewell(std::uint32_t rank, const FinalState& last, const Roster& roster, SignalLog& log);

 private:
  using Groups = std::set<std::uint64_t>;
  void compare(const StepContext& context, StateHash::Kind kind, SignalLog& log);
  void compare_shard(const StepContext& context, StateHash::Kind kind, std::uint32_t shard,
                     SignalLog& log);
  void compare_watched(const StepContext& context, SignalLog& log);
  static void report_compared(const StepContext& context, SignalLog& log);
  void compare_clocks(const StepContext& context, SignalLog& log);
  void report(StateHash::Kind kind, std::uint64_t step, const Split& held, const Groups& differ,
              const Roster& roster, SignalLog& log);

  struct Farewells {
    std::unordered_map<std::uint64_t, std::uint64_t> reference;  // group to value
    std::vector<RankValue> held;  // what differs from it, as one hash; 0: nothing
    Groups differ;
  };
  std::unordered_map<std::uint64_t, Farewells> farewells_;  // by optimiser steps; at most 64
  // Steps of the last records, in turn: so many later the same part of the model is hashed again.
  std::array<std::uint64_t, 25> looked_{};
  std::uint64_t looks_ = 0;
  std::array<Groups, 6> differ_;  // all that differed, by StateHash::Kind
  bool joined_ = false;           // some worker had no input at some step
  Streak unwatched_;              // not all watched the same
  Streak lagging_;                // clocks differ
  bool lagged_ = false;           // ever
  std::uint64_t last_step_ = 0;
  std::size_t workers_ = 0;  // in the last record
};

}  // namespace presum::diagnose
