// SPDX-License-Identifier: Apache-2.0
// Where the time of steps went, for people and for programs.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "presum/run_log.h"
#include "presum/step_record.h"
#include "presum/times.h"

namespace presum::cli {

// Means over steps whose times are known, in seconds. NaN without any.
class MeanTimes {
 public:
  // REQUIRES: they are known.
  void add(const StepTimes& times);
  std::uint64_t count() const { return count_; }
  double of(Phase phase) const;
  double own() const;
  // The share of its own time that the thread was on a processor. NaN: not known, as of a device.
  double on_processor() const;

 private:
  std::uint64_t count_ = 0;
  StepTimes sums_{.seconds = {}};
  std::uint64_t processor_count_ = 0;
  double processor_sum_ = 0;
};

// Of one model, through all segments.
struct TimeTable {
  std::map<std::uint32_t, MeanTimes> ranks;
  MeanTimes all;
  std::uint64_t steps = 0;  // of which times are known
  // Over workers and steps, in seconds: what a worker waited beyond the one that waited least in
  // that step; and everything.
  double waited = 0;
  double recorded = 0;

  void add(std::span<const WorkerRecord> workers);
  // The rank with the longest own time, and how many times the median of the others' that is. None
  // for fewer than two ranks.
  std::optional<std::pair<std::uint32_t, double>> slowest() const;
};

using ModelPart = std::pair<std::uint32_t, std::uint32_t>;  // model_index and dp_group

// Models of which no times are known are left out. Holds one step in memory at a time. Errors:
// those of reading the run.
Result<std::map<ModelPart, TimeTable>> time_tables(const RunLog& log);

// A line a rank, or of many the slowest and the fastest; what the others wait for.
std::string times_text(const TimeTable& table);
nlohmann::ordered_json times_json(const TimeTable& table);

// The rank that the others of a step wait for: with the longest own time, if that is 1.04 times the
// median of the others' and a millisecond more at least.
struct SlowRank {
  std::uint32_t rank = 0;
  double factor = 1;  // of the median of the others'
};
std::optional<SlowRank> slow_rank(std::span<const WorkerRecord> workers);

// "the job stood still for 72 s at step 40, and went on: rank 1 is in ...". Printable.
std::string stall_text(const Stall& stall);

// What presum itself took of a rank's time, as its facts `overhead_ms` and `step_ms` tell: of the
// rank where it is the largest share.
struct Overhead {
  std::uint32_t rank = 0;
  double overhead_ms = 0;  // on the training's threads, a step
  double step_ms = 0;      // all of that step
  double share() const { return overhead_ms / step_ms; }
};

// By model_index, of its last segment that was long enough to tell. Facts that are no such numbers
// are left out.
std::map<std::uint32_t, Overhead> overheads(std::span<const Fact> facts);

// "presum took 2.4 ms of a step of 111 ms on rank 0: 2.2 %, ...".
std::string overhead_text(const Overhead& time);
nlohmann::ordered_json overhead_json(const Overhead& time);

}  // namespace presum::cli
