// SPDX-License-Identifier: Apache-2.0
// Whether the ranks of a job go on, and where they stand if they do not: docs/time.md, "Stalls".
// Plain values; durations are in seconds of the clock of whoever tells them. NaN: not known.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "presum/times.h"

namespace presum {

// What a process says of itself now and then, whether its training goes on or not.
struct Heartbeat {
  std::uint64_t events = 0;       // of its training so far: it goes on if they grow
  std::uint64_t step = 0;         // of the last event
  std::uint32_t micro_batch = 0;  // likewise
  Phase phase = Phase::kRest;     // likewise
  bool waiting = false;           // for other workers, as far as hooks show
  // Its interpreter answers nothing: a call holds the lock. A thread that needs none says so.
  bool lock_held = false;
  char thread = '?';        // state of the thread that trains, as the system calls it: R, S, D, T
  std::uint64_t layer = 0;  // the group of the last gradient that came since; 0: none
  double still = 0;         // seconds since the last event
  double longest = 0;       // the longest such time that ended
  double processor = std::numeric_limits<double>::quiet_NaN();  // share of one that the thread used
  double period = 2;          // seconds from one of these to the next
  double stall_seconds = 60;  // after which somebody is to say where it stands
  std::string host;
  std::string collective;  // the function of torch.distributed in which it waits; empty: none
  std::string site;      // "evaluate() of train.py:88": the program's innermost line; may be empty
  std::string stack;     // the thread's, innermost first, one frame a line; may be empty
  std::string recorder;  // the last collectives as torch's flight recorder has them; may be empty
};

// One rank of a job that stands still.
struct StalledRank {
  std::uint32_t rank = 0;
  bool answers = true;  // it was heard lately
  bool left = false;    // it has said goodbye
  double unheard = 0;   // seconds since it was heard
  double there = 0;     // seconds since it came where it is; not in run logs
  std::string where;    // one phrase: "waits in the all-reduce of step 1204"
  std::string layer;    // name of Heartbeat::layer, where it is known
  Heartbeat last;       // what it said last
};

// A job that stands still.
struct Stall {
  std::uint32_t number = 0;  // of those that were seen, from 1
  std::uint64_t step = 0;    // the latest that a rank has got to
  double seconds = 0;        // since the last rank went on
  bool over = false;         // it went on
  // It may well be meant: nobody waits, the others wait in a barrier, as for a checkpoint, or all
  // wait and the last has just come.
  bool harmless = false;
  bool busy = false;                 // who keeps the others waiting works, and will come
  bool awaited = false;              // somebody waits for another
  std::string sentence;              // who is where, for people
  std::vector<std::uint32_t> ranks;  // who keeps the others waiting; empty: not known
  std::vector<StalledRank> all;      // by rank
};

}  // namespace presum
