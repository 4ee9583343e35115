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

// Sorts the steps of all workers into whole steps, in order for each model. Pure bookkeeping: time
// comes in as an argument. Not synchronized.
//
// Steps come out with numbers of their own, ascending: those of the workers, which count
// reductions, and one more for each step that was not reduced (docs/step.md).
//
// A worker's step is given up, and the worker recorded as missing, when 64 later steps wait and
// 30 s have passed: at 7 ms a step the first alone are half a second, in which a starved thread may
// well not run, and a rank that writes a checkpoint may be silent for longer than the second alone.
// Of a worker that has been silent for 30 s by then no later step waits until it is heard again.
class StepAssembler {
 public:
  static constexpr std::size_t kLaterSteps = 64;
  static constexpr Seconds kPatience{30};
  // What waits may take as much memory. Beyond that the oldest steps are given up, without saying
  // that anyone is missing but who left.
  static constexpr std::size_t kBytesMax = std::size_t{256} << 20;

  // No worker is this many steps ahead of what is known of its model.
  static constexpr std::uint64_t kStepsAheadMax = 1 << 20;

  explicit StepAssembler(std::size_t bytes_max = kBytesMax) : bytes_max_(bytes_max) {}

  enum class Taken { kNew, kDuplicate, kLate, kImplausible };
  Taken add(packet::Step&& step, Seconds now);
  // The worker has sent something.
  void heard(const Identity& worker, Seconds now);
  // The worker will send no further step: nobody waits for it any more.
  void departed(const Identity& worker);

  struct Assembled {
    std::uint32_t workers_expected = 0;
    std::uint32_t left_out = 0;          // of those, who went on without this step; see StepRecord
    std::vector<std::uint32_t> missing;  // replicas, ascending; see StepRecord
    std::vector<packet::Step> workers;   // by replica
  };
  // The next step that is complete or has waited long enough; with `flush`, any step: of those that
  // it lacks nothing is said then, but of who left, was given up before, or never came in 30 s.
  std::optional<Assembled> next(Seconds now, bool flush);

 private:
  using Key = std::pair<std::uint64_t, std::uint32_t>;  // reductions and window of StepNumber
  struct Open {
    Seconds first_seen{0};
    std::uint32_t workers_expected = 0;
    std::size_t bytes = 0;
    std::map<std::uint32_t, packet::Step> workers;
  };
  // Of one worker: its steps that are open, each with its count of unreduced steps before it.
  struct Worker {
    std::map<Key, std::uint64_t> open;
    std::uint64_t unreduced = 0;  // after the last of its steps that is closed
  };
  struct Stream {
    explicit Stream(Seconds now) : began(now) {}
    Seconds began;
    std::map<Key, Open> open;
    std::optional<Key> last_closed;
    std::optional<std::uint64_t> last_number;
    std::map<std::uint32_t, Seconds> last_heard;
    std::uint64_t unreduced = 0;              // the most that a worker has had
    std::map<std::uint32_t, Worker> workers;  // with open steps, or once heard
    std::size_t with_open = 0;                // workers that have open steps
    std::set<std::uint32_t> not_awaited;      // those that left, and those that are silent
    std::set<std::uint32_t> left;
  };
  using Streams =
      std::map<std::pair<std::uint32_t, std::uint32_t>, Stream>;  // model_index and dp_group

  Stream& stream_of(const Identity& worker, Seconds now);
  // Whether a worker has left out the stream's first step, which was not reduced: a later one of
  // it has come, with no unreduced step in between. Else its packet may be late, or lost.
  static bool left_out(const Stream& stream, const Worker& worker);
  static bool is_ahead(const Stream& stream, const Worker& worker);
  static void close(Stream& stream, const packet::Step& step, const Key& key);
  static void number(Stream& stream, std::vector<packet::Step>& workers);
  static std::uint64_t newest(const Stream& stream);
  static bool complete(const Stream& stream);
  static bool ready(const Stream& stream, Seconds now);
  // Of those that the stream's first step lacks, who has been silent for long, or ever since.
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
