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

// How the ranks of a job end, and which of them ended first and took the others with them. Not
// synchronized.
class RankEnds {
 public:
  // A model of the rank is recorded from now on.
  void hello(std::uint32_t rank);
  void step(std::uint32_t rank, std::uint64_t step);
  // It has said goodbye of its last model. `why`: the exception that ends its program; may be
  // empty.
  void left(std::uint32_t rank, const std::string& why);
  // `missed`: another rank is within a step, or waits.
  void process_ended(std::uint32_t rank, const ProcessEnd& end, bool missed);
  // Nothing has come from it lately. `last_place`: the program's line when it was last heard.
  void silent(std::uint32_t rank, const std::string& last_place);
  // The recording ends.
  void close();

  // What is known now; none where every rank that ended left the training in order.
  std::optional<checks::RankEnd> first() const;

 private:
  enum class How : std::uint8_t {
    kRuns,
    kLeft,       // in order
    kStopped,    // by a signal or an exception that somebody outside sends
    kException,  // of its own
    kExchange,   // by an exception of a collective: another rank was gone
    kKilled,     // by a signal, or with an exit code
    kAborted,    // by SIGABRT, as the watchdog of a backend does where another rank is gone
    kVanished,   // nobody knows how
    kSilent,
  };
  struct Rank {
    How how = How::kRuns;
    std::string text;   // "was killed by SIGKILL"
    std::string place;  // where it was when it was last heard; may be empty
    std::uint64_t order = 0;
    bool missed = false;  // others were within a step
    bool late = false;    // after it had left in order: an interpreter's shutdown, or an exit code
    std::optional<std::uint64_t> step;  // the last
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
