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
  std::filesystem::path run;  // the RUN folder; created if absent, continued if it holds a run
  // Number of ranks in the job; packets from ranks outside it are ignored. 0: unknown, and packets
  // from any rank are accepted.
  std::uint32_t world_size = 0;
  // Returns seconds since an arbitrary start; must never decrease. Default: the steady clock.
  std::function<std::chrono::duration<double>()> clock;
};

// A rank's process, as its hello describes it. A field that the hello leaves out is empty.
struct RankProcess {
  std::uint32_t rank = 0;
  std::string host;
  std::string pid;
  // When the process started, as its operating system counts it. Distinguishes the process from a
  // later one with the same pid.
  std::string start;
};

struct AggregatorCounters : PacketCounts {
  std::uint64_t packets = 0;  // packets decoded and used
  // Steps written to the run log. Each belongs to one model and one data-parallel group.
  std::uint64_t records = 0;
  // Training steps in this segment: the largest count over its models and data-parallel groups.
  std::uint64_t steps = 0;
};

// Collects the packets from all ranks of a job and writes their contents to the run log. A job has
// one aggregator for all of its models. Each rank numbers its models per group of ranks; the run
// log numbers models in the order in which the aggregator first hears of them. Two ranks report the
// same model if their index and replica count are equal.
//
// Packets may be late, repeated, out of order, damaged or missing; the aggregator treats none of
// that as an error. It writes a step once the packets from all its ranks are there, or once 64
// later steps wait and 30 s have passed since the step's first packet. It records the absent ranks
// as missing. After a rank has been silent for 30 s, no later step waits for it until it sends
// again. Waiting packets take at most 256 MiB of memory; beyond that the aggregator writes the
// oldest steps incomplete, without recording a missing rank. It judges each step when it writes it;
// the findings are in the run log within a second.
//
// Thread-safety: not synchronized. One thread at a time may call it; the thread may change.
class Aggregator {
 public:
  // Opens the run log and begins its next segment. Errors: kIo (the folder is not writable),
  // kCorrupt, kUnsupported (the folder holds something else).
  static Result<Aggregator> open(AggregatorOptions options);
  Aggregator(Aggregator&&) noexcept;
  Aggregator& operator=(Aggregator&&) noexcept;
  ~Aggregator();

  // The identity that every rank must stamp on its packets.
  Announcement announcement() const;

  // Takes the bytes of one packet. Bad packets are counted and ignored. Errors are those of the run
  // log (kIo); after one, nothing more is written.
  Status ingest(std::span<const std::byte> packet);
  // Writes steps that have waited too long and commits. Call it a few times a second.
  Status tick();
  // Returns whether every rank has said goodbye for every model heard of so far; false if no model
  // has been heard of.
  bool everyone_left() const;
  // Returns one sentence, for display, that says why the job is stalled. Empty if the job makes
  // progress, if its wait may be intended, or if the rank that the others wait for is working.
  std::string stall() const;
  // The processes of the ranks heard so far whose end has not been reported, for a caller that can
  // watch them.
  std::vector<RankProcess> processes() const;
  // Reports that a rank's process has ended. The conclusion is in the run log when this returns,
  // because the caller may end the job at once. A heartbeat of the caller's own rank just before
  // tells whether the job still needs the rank that ended.
  Status process_ended(std::uint32_t rank, const ProcessEnd& end);
  // Returns the notices that are new since the last call, one line each, about how a later segment
  // continues its run: first that it does, then, once the first step of each model has been judged,
  // whether the detectors keep their state.
  std::vector<std::string> take_notices();
  // The number of ranks heard so far.
  std::size_t ranks_heard() const;
  AggregatorCounters counters() const;
  // `take_new_findings` and `findings` merge findings with one cause in several models into one.
  //
  // Returns the findings that are new since the last call, worst first, in their current state. A
  // finding is new once, and again when its severity rises; it may grow later. Covers the steps
  // that `ingest` and `tick` have closed so far.
  std::vector<Finding> take_new_findings();
  // All findings of this segment, worst first.
  std::vector<Finding> findings() const;
  Verdict verdict() const;
  // Returns one line that says how many steps the statistics needed and saw; empty if they saw
  // enough.
  std::string too_short() const;
  // Ends a preflight and records its exit code: 0, the verdict is consistent; 1, it is
  // inconsistent; 2, the evidence is insufficient. The code is also 2 if `require_statistics` is
  // set and the run was too short for statistics.
  Result<int> end_preflight(bool require_statistics = false);

  // Declares that no more packets can arrive from other ranks, for the reason given. Later steps
  // record no rank as missing, and the segment is marked incomplete from here on.
  Status lose_others(std::string_view why);

  // Writes every open step, complete or not, and closes the run log. After an error of the run log
  // it does what `abandon` does.
  Status close();
  // Stops writing after a failure in the caller. What was written stays. The segment is not marked
  // as closed; it is marked incomplete if the file still accepts the write.
  void abandon(std::string_view why);
  // Returns one line, for display, that says why the record is incomplete; empty if nothing is
  // known to be missing.
  std::string incomplete() const;

 private:
  struct State;
  explicit Aggregator(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace presum
