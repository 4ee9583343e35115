// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "packet/packet.h"

namespace presum::aggregate {

// Assembles the steps of all ranks into whole steps, in order for each model. Pure bookkeeping:
// time is an argument. Not synchronized.
//
// The assembled steps have ascending numbers: the ranks' count of reductions, plus one for each
// step without a reduction (docs/step.md).
//
// The assembler gives up on a rank's step, and records the rank as missing, once 64 later steps
// wait and 30 s have passed. Both conditions are needed: at 7 ms per step, 64 steps take half a
// second, for which a starved thread may not run; and a rank that writes a checkpoint may be silent
// for more than 30 s. If the rank has been silent for 30 s by then, no later step waits for it
// until it is heard again.
class StepAssembler {
 public:
  static constexpr std::size_t kLaterSteps = 64;
  static constexpr Seconds kPatience{30};
  // Memory limit for waiting steps. Beyond it the oldest steps are given up; only ranks that have
  // left are recorded as missing.
  static constexpr std::size_t kBytesMax = std::size_t{256} << 20;

  // Steps this far ahead of a model's known steps are implausible.
  static constexpr std::uint64_t kStepsAheadMax = 1 << 20;

  explicit StepAssembler(std::size_t bytes_max = kBytesMax) : bytes_max_(bytes_max) {}

  enum class Taken { kNew, kDuplicate, kLate, kImplausible };
  Taken add(packet::Step&& step, Seconds now);
  // The rank has sent something.
  void heard(const Identity& worker, Seconds now);
  // The rank will send no more steps; steps stop waiting for it.
  void departed(const Identity& worker);

  struct Assembled {
    std::uint32_t workers_expected = 0;
    // Of the expected ranks, those that continued without this step; see StepRecord.
    std::uint32_t left_out = 0;
    std::vector<std::uint32_t> missing;  // replicas, ascending; see StepRecord
    std::vector<packet::Step> workers;   // by replica
  };
  // Returns the next step that is complete or has waited long enough; with `flush`, any step. With
  // `flush`, an absent rank is recorded as missing only if it has left, was given up before, or
  // never sent anything in 30 s.
  std::optional<Assembled> next(Seconds now, bool flush);

 private:
  using Key = std::pair<std::uint64_t, std::uint32_t>;  // reductions and window of StepNumber
  struct Open {
    Seconds first_seen{0};
    std::uint32_t workers_expected = 0;
    std::size_t bytes = 0;
    std::map<std::uint32_t, packet::Step> workers;
  };
  // The open steps of one rank, each with its count of unreduced steps before it.
  struct Worker {
    std::map<Key, std::uint64_t> open;
    std::uint64_t unreduced = 0;  // count after its last closed step
  };
  struct Stream {
    explicit Stream(Seconds now) : began(now) {}
    Seconds began;
    std::map<Key, Open> open;
    std::optional<Key> last_closed;
    std::optional<std::uint64_t> last_number;
    std::map<std::uint32_t, Seconds> last_heard;
    std::uint64_t unreduced = 0;              // the largest count of a rank
    std::map<std::uint32_t, Worker> workers;  // with open steps, or heard before
    std::size_t with_open = 0;                // number of ranks with open steps
    std::set<std::uint32_t> not_awaited;      // ranks that have left, and silent ones
    std::set<std::uint32_t> left;
  };
  using Streams =
      std::map<std::pair<std::uint32_t, std::uint32_t>, Stream>;  // model_index and dp_group

  Stream& stream_of(const Identity& worker, Seconds now);
  // Returns whether a rank has left out the stream's first step, which was not reduced: a later
  // step of the rank has arrived, with no unreduced step in between. If not, the packet may be late
  // or lost.
  static bool left_out(const Stream& stream, const Worker& worker);
  static bool is_ahead(const Stream& stream, const Worker& worker);
  static void close(Stream& stream, const packet::Step& step, const Key& key);
  static void number(Stream& stream, std::vector<packet::Step>& workers);
  static std::uint64_t newest(const Stream& stream);
  static bool complete(const Stream& stream);
  static bool ready(const Stream& stream, Seconds now);
  // Which of the ranks that the stream's first step lacks: those silent for long, or those never
  // heard.
  enum class Who { kSilent, kNeverHeard };
  static void stop_awaiting(Stream& stream, Seconds now, Who who);
  Streams::iterator oldest();
  enum class Why { kComplete, kWaited, kNoMemory, kEnd };
  Assembled take_first(Stream& stream, Why why);

  std::size_t bytes_max_;
  std::size_t bytes_ = 0;
  Streams streams_;
};

}  // namespace presum::aggregate
