// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checks/job/rank_ended.h"
#include "presum/process_end.h"

namespace presum::aggregate {

// How the ranks of a job end, and which rank ended first and caused the others to end. Not
// synchronized.
class RankEnds {
 public:
  // A model of the rank is recorded from now on.
  void hello(std::uint32_t rank);
  void step(std::uint32_t rank, std::uint64_t step);
  // The rank has said goodbye for its last model. `why`: the exception that ends its program; may
  // be empty.
  void left(std::uint32_t rank, const std::string& why);
  // `missed`: another rank is within a step, or waits.
  void process_ended(std::uint32_t rank, const ProcessEnd& end, bool missed);
  // The rank has not been heard from recently. `last_place`: the line of the program at its last
  // heartbeat.
  void silent(std::uint32_t rank, const std::string& last_place);
  // The recording ends.
  void close();

  // Returns the end that caused the others, as known now; empty if every rank that ended left the
  // training normally.
  std::optional<checks::RankEnd> first() const;

 private:
  enum class How : std::uint8_t {
    kRuns,
    kLeft,       // normally
    kStopped,    // by a signal or an exception sent from outside
    kException,  // by an exception of its own
    kExchange,   // by an exception of a collective, because another rank was gone
    kKilled,     // by a signal, or with an exit code
    kAborted,    // by SIGABRT, like the watchdog of a backend if another rank is gone
    kVanished,   // the way is unknown
    kSilent,
  };
  struct Rank {
    How how = How::kRuns;
    std::string text;   // "was killed by SIGKILL"
    std::string place;  // its last known place; may be empty
    std::uint64_t order = 0;
    bool missed = false;  // other ranks were within a step
    // The end came after the rank had left normally: from the interpreter's shutdown, or as an exit
    // code.
    bool late = false;
    std::optional<std::uint64_t> step;  // the last one
  };
  using Group = std::vector<std::uint32_t>;
  void end(Rank& rank, How how, std::string text);
  std::uint64_t steps_behind(const Group& group) const;
  bool some_suffer() const;
  Group first_of(std::initializer_list<How> ways) const;
  Group of(How how) const;
  Group culprits() const;
  Group alike(std::uint32_t first) const;
  Severity severity_of(const Group& group, bool everyone) const;

  std::uint64_t ends_ = 0;
  std::map<std::uint32_t, Rank> ranks_;
};

}  // namespace presum::aggregate
