// SPDX-License-Identifier: Apache-2.0
// Whether the ranks of a job make progress, and where each one is if they do not: docs/time.md,
// "Stalls". Plain values; durations are in seconds of the reporting process's clock. NaN: unknown.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "presum/times.h"

namespace presum {

// A process's periodic report about itself, sent whether or not its training makes progress.
struct Heartbeat {
  std::uint64_t events = 0;       // training events so far; progress means that this grows
  std::uint64_t step = 0;         // step of the last event
  std::uint32_t micro_batch = 0;  // micro-batch of the last event
  Phase phase = Phase::kRest;     // phase of the last event
  bool waiting = false;           // waiting for other ranks, as far as hooks show
  // The interpreter does not respond, because a call holds its lock. A native thread reports this.
  bool lock_held = false;
  char thread = '?';        // state of the training thread, as the system names it: R, S, D, T
  std::uint64_t layer = 0;  // group of the last gradient since then; 0: none
  double still = 0;         // seconds since the last event
  double longest = 0;       // longest completed time between two events
  // Share of one processor that the thread used.
  double processor = std::numeric_limits<double>::quiet_NaN();
  double period = 2;          // seconds between heartbeats
  double stall_seconds = 60;  // seconds without progress after which a stall is reported
  std::string host;
  std::string collective;  // torch.distributed function that it waits in; empty: none
  std::string site;      // innermost line of the program: "evaluate() of train.py:88"; may be empty
  std::string stack;     // stack of the thread, innermost frame first, one per line; may be empty
  std::string recorder;  // last collectives in torch's flight recorder; may be empty
};

// One rank of a stalled job.
struct StalledRank {
  std::uint32_t rank = 0;
  bool answers = true;  // heard from recently
  bool left = false;    // has said goodbye
  double unheard = 0;   // seconds since it was last heard
  double there = 0;     // seconds in its current place; not in run logs
  std::string where;    // one phrase, such as "waits in the all-reduce of step 1204"
  std::string layer;    // name of Heartbeat::layer, if known
  Heartbeat last;       // its last heartbeat
};

// A stalled job.
struct Stall {
  std::uint32_t number = 0;  // number of the stall in its segment, from 1
  std::uint64_t step = 0;    // the latest step that a rank has reached
  double seconds = 0;        // seconds since the last progress of any rank
  bool over = false;         // the job makes progress again
  // The stall may be intended: no rank waits for another, the waiting ranks are in a barrier (as
  // for a checkpoint), or all ranks wait and the last one has just arrived.
  bool harmless = false;
  bool busy = false;                 // the awaited rank works and will arrive
  bool awaited = false;              // some rank waits for another
  std::string sentence;              // where each rank is, as one sentence for display
  std::vector<std::uint32_t> ranks;  // ranks that keep the others waiting; empty: unknown
  std::vector<StalledRank> all;      // by rank
};

}  // namespace presum
