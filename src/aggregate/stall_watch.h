// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "presum/packet.h"
#include "presum/records.h"
#include "presum/stall.h"

namespace presum::aggregate {

// Sees by heartbeats when a job stands still, and says who is where. Time comes in as an argument.
// Not synchronised. Ranks that send no heartbeats are left out.
class StallWatch {
 public:
  void hello(const std::vector<GroupName>& groups);
  void beat(std::uint32_t rank, Heartbeat beat, Seconds now);
  // A packet of the rank has come.
  void heard(std::uint32_t rank, Seconds now);
  // It has said goodbye of a model; `why` may say how the program ended.
  void left(std::uint32_t rank, const std::string& why);
  bool beats() const { return !ranks_.empty(); }

  // A stall that has begun, that is another than before, or that is over; else none. To be asked a
  // few times a second.
  std::optional<Stall> look(Seconds now);

 private:
  struct Rank {
    Heartbeat last;
    Seconds heard{0};
    bool beaten = false;
    bool left = false;
    std::string why;
  };
  double limit() const;
  bool stands(const Rank& rank) const;
  static bool silent(const Rank& rank, Seconds now);
  StalledRank describe(std::uint32_t number, const Rank& rank, Seconds now) const;
  Stall make(Seconds now) const;
  std::optional<Stall> end_if_over(Seconds now);

  std::map<std::uint32_t, Rank> ranks_;
  std::map<std::uint64_t, std::string> layers_;
  std::optional<Stall> open_;
  Seconds looked_{0};                              // when it was last seen to stand still
  std::map<std::uint32_t, std::uint64_t> events_;  // of those that stood still when it began
};

}  // namespace presum::aggregate
