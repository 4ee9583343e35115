// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "presum/finding.h"
#include "presum/packet.h"
#include "presum/process_end.h"
#include "presum/run_log.h"
#include "presum/status.h"

namespace presum {

struct AggregatorOptions {
  std::filesystem::path run;  // the RUN folder; created if absent, continued if it is a run
  // Ranks of the job; packets of others are ignored. 0: not known, any rank is believed.
  std::uint32_t world_size = 0;
  // Seconds from an arbitrary start, never going back. Default: the steady clock.
  std::function<std::chrono::duration<double>()> clock;
};

// What a rank's hello says of its process; empty where it did not.
struct RankProcess {
  std::uint32_t rank = 0;
  std::string host;
  std::string pid;
  std::string start;  // of the process, as its system counts it: tells it from a later one
};

struct AggregatorCounters : PacketCounts {
  std::uint64_t packets = 0;  // understood and used
  std::uint64_t records = 0;  // steps written to the run log, each of one model and group
  // Of the training, in this segment: the most that one of its models or data-parallel groups has.
  std::uint64_t steps = 0;
};

// Collects the packets of all workers of a job and writes what they say to the run log: one per
// job, for all models. Each rank numbers its models per group of ranks; the run log numbers them in
// the order in which they are first heard: the same number and count of replicas is one model.
// Packets may be late, repeated, out of order, damaged or missing; none of that is an error. A step
// is written when all its workers are there, or when 64 later ones wait and 30 s have passed since
// its first packet; workers that are not in it then are recorded as missing, and of one that was
// silent for 30 s no later step waits until it is heard again. Packets that wait take 256 MiB at
// most: beyond that the oldest steps are written as they are, without saying that anyone is
// missing. Steps are judged as they are written; findings are in the run log with their steps,
// within a second.
//
// Thread-safety: not synchronized; one thread at a time (it need not be the same one).
class Aggregator {
 public:
  // Opens the run log and begins its next segment. Errors: kIo (not writable), kCorrupt,
  // kUnsupported (the folder holds something else).
  static Result<Aggregator> open(AggregatorOptions options);
  Aggregator(Aggregator&&) noexcept;
  Aggregator& operator=(Aggregator&&) noexcept;
  ~Aggregator();

  // What all ranks must stamp on their packets.
  Announcement announcement() const;

  // Takes the bytes of one packet. Bad packets are counted and ignored; errors are those of the
  // run log (kIo), after which nothing more is written.
  Status ingest(std::span<const std::byte> packet);
  // Call a few times a second: closes steps that waited too long and commits.
  Status tick();
  // Whether every worker has said goodbye of every model that anything was heard of; false before.
  bool everyone_left() const;
  // Why the job stands still now, as one sentence for people; empty where it goes on, waits for
  // something that may well be meant, or for somebody who works.
  std::string stall() const;
  // Processes of the ranks that were heard and of which no end was told, for whoever can see it.
  std::vector<RankProcess> processes() const;
  // A rank's process has ended. What it means is in the run log when this returns: whoever ends the
  // job may not wait. A heartbeat of the caller's own rank just before tells whether it is missed.
  Status process_ended(std::uint32_t rank, const ProcessEnd& end);
  // What is to be told of how a segment after the first continues its run, as lines for people that
  // are new since the last call: at once that it does, and whether detectors go on once the first
  // step of each model was judged.
  std::vector<std::string> take_notices();
  // How many ranks of the job were heard.
  std::size_t ranks_heard() const;
  AggregatorCounters counters() const;
  // One cause in several models is one finding, in both of these.
  //
  // The findings that are new since the last call, worst first, as they are now. A finding is new
  // once; it may grow later. Looks at what `ingest` and `tick` have closed so far.
  std::vector<Finding> take_new_findings();
  // All of them, of this segment, and what they mean.
  std::vector<Finding> findings() const;
  Verdict verdict() const;
  // What was too short for statistics to be judged, as one line; empty where it was long enough.
  std::string too_short() const;
  // Writes what a preflight ends with: 0 fine, 1 findings at or above warning, 2 could not judge;
  // that too where statistics are required and the run was too short for them.
  Result<int> end_preflight(bool require_statistics = false);

  // Packets of other workers cannot come any more, for the reason given: later steps do not say
  // that anyone is missing, and the segment is marked as incomplete from here on.
  Status lose_others(std::string_view why);

  // Writes every step that is still open, complete or not, and closes the run log. After an error
  // of the run log it does as `abandon`.
  Status close();
  // Ends the writing after a failure of the caller's: what was written stays, and the segment is
  // not marked as closed in order but, where the file still takes it, as incomplete.
  void abandon(std::string_view why);
  // Why the record is not whole, as one line for people; empty where nothing is known to lack.
  std::string incomplete() const;

 private:
  struct State;
  explicit Aggregator(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace presum
