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

// Detects from heartbeats when a job is stalled, and describes where each rank is. Time is an
// argument. Not synchronized. Ignores ranks that send no heartbeats.
class StallWatch {
 public:
  // `world_size`: number of ranks in the job; 0: unknown.
  explicit StallWatch(std::uint32_t world_size = 0) : world_size_(world_size) {}

  // A model of the rank is recorded from now on.
  void hello(std::uint32_t rank, const std::vector<GroupName>& groups);
  void beat(std::uint32_t rank, Heartbeat beat, Seconds now);
  // A packet from the rank has arrived.
  void heard(std::uint32_t rank, Seconds now);
  // The rank has said goodbye for a model; `why` may say how the program ended.
  void left(std::uint32_t rank, const std::string& why);
  // Returns the ranks that have sent heartbeats, but not recently, each with the program's line in
  // its last heartbeat.
  std::vector<std::pair<std::uint32_t, std::string>> silent(Seconds now) const;

  // Returns whether a rank with a heartbeat from just now is within a step or waits for others.
  bool in_step(Seconds now) const;

  // Returns a stall that has started, has become more severe, has doubled in length since it was
  // last returned, or is over; otherwise nothing. Call it a few times a second.
  std::optional<Stall> look(Seconds now);
  // The current stall.
  const std::optional<Stall>& now() const { return open_; }

 private:
  struct Rank {
    Heartbeat last;
    Seconds heard{0};
    Seconds beaten{0};  // time of the last heartbeat
    Seconds came{0};    // time of the first heartbeat from this place
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
  Seconds looked_{0};        // when the job was last seen stalled
  double told_seconds_ = 0;  // length of the stall when it was last returned
  // Event counts of the ranks that were stalled when it started.
  std::map<std::uint32_t, std::uint64_t> events_;
};

}  // namespace presum::aggregate
