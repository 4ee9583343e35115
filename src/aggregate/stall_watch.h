// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "presum/packet.h"
#include "presum/records.h"
#include "presum/stall.h"

namespace presum::aggregate {

// Sees by heartbeats when a job stands still, and says who is where. Time comes in as an argument.
// Not synchronized. Ranks that send no heartbeats are left out.
class StallWatch {
 public:
  // `world_size`: ranks of the job; 0: not known.
  explicit StallWatch(std::uint32_t world_size = 0) : world_size_(world_size) {}

  // A model of the rank is recorded from now on.
  void hello(std::uint32_t rank, const std::vector<GroupName>& groups);
  void beat(std::uint32_t rank, Heartbeat beat, Seconds now);
  // A packet of the rank has come.
  void heard(std::uint32_t rank, Seconds now);
  // It has said goodbye of a model; `why` may say how the program ended.
  void left(std::uint32_t rank, const std::string& why);
  // Ranks that sent heartbeats once, and have not lately, with the program's line of the last one.
  std::vector<std::pair<std::uint32_t, std::string>> silent(Seconds now) const;

  // Whether a rank that has just told where it stands is within a step, or waits for others.
  bool in_step(Seconds now) const;

  // A stall that has begun, has become graver, lasts twice as long as when it was told, or is over;
  // else none. To be asked a few times a second.
  std::optional<Stall> look(Seconds now);
  // The one under way.
  const std::optional<Stall>& now() const { return open_; }

 private:
  struct Rank {
    Heartbeat last;
    Seconds heard{0};
    Seconds beaten{0};  // when it last told where it stands
    Seconds came{0};    // when it first told of this place
    bool left = false;
    std::string why;
  };
  double limit() const;
  bool stands(const Rank& rank) const;
  static bool silent(const Rank& rank, Seconds now);
  StalledRank describe(std::uint32_t number, const Rank& rank, Seconds now) const;
  Stall make(Seconds now) const;
  std::vector<std::uint32_t> unheard() const;
  bool goes_on() const;
  bool all_left() const;
  bool by_exceptions() const;
  bool anybody_stands(Seconds now) const;

  std::uint32_t world_size_;
  std::uint32_t stalls_ = 0;
  std::map<std::uint32_t, Rank> ranks_;
  std::map<std::uint64_t, std::string> layers_;
  std::optional<Stall> open_;
  Seconds looked_{0};                              // when it was last seen to stand still
  double told_seconds_ = 0;                        // for which it had when it was last told
  std::map<std::uint32_t, std::uint64_t> events_;  // of those that stood still when it began
};

}  // namespace presum::aggregate
