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

// Means over the steps whose times are known, in seconds. NaN if there are none.
class MeanTimes {
 public:
  // REQUIRES: the times are known.
  void add(const StepTimes& times);
  std::uint64_t count() const { return count_; }
  double of(Phase phase) const;
  double own() const;
  // The fraction of its own time that the thread was on a processor. NaN: not known, as for times
  // of a device.
  double on_processor() const;

 private:
  std::uint64_t count_ = 0;
  StepTimes sums_{.seconds = {}};
  std::uint64_t processor_count_ = 0;
  double processor_sum_ = 0;
};

// One model, over all segments.
struct TimeTable {
  std::map<std::uint32_t, MeanTimes> ranks;
  MeanTimes all;
  std::uint64_t steps = 0;  // steps with known times
  // In seconds, over ranks and steps: the time that ranks waited beyond the rank that waited least
  // in the step, and the total time.
  double waited = 0;
  double recorded = 0;

  void add(std::span<const WorkerRecord> workers);
  // The rank with the longest own time, and its ratio to the median of the others'. Empty for fewer
  // than two ranks.
  std::optional<std::pair<std::uint32_t, double>> slowest() const;
};

using ModelPart = std::pair<std::uint32_t, std::uint32_t>;  // model_index and dp_group

// Leaves out models without known times. Holds one step in memory at a time. Errors: those of
// reading the run.
Result<std::map<ModelPart, TimeTable>> time_tables(const RunLog& log);

// One line per rank or, if there are many, per slowest and fastest rank; then the time spent
// waiting for slower ranks.
std::string times_text(const TimeTable& table);
nlohmann::ordered_json times_json(const TimeTable& table);

// The rank that the others wait for in a step: the one with the longest own time, if that is at
// least 1.04 times the median of the others' and at least 1 ms longer.
struct SlowRank {
  std::uint32_t rank = 0;
  double factor = 1;  // ratio to the median of the others'
};
std::optional<SlowRank> slow_rank(std::span<const WorkerRecord> workers);

// "the job stalled for 72 s at step 40, then continued: rank 1 is in ...". Printable.
std::string stall_text(const Stall& stall);

// presum's own share of a rank's time, from its facts `overhead_ms` and `step_ms`; the rank is the
// one with the largest share.
struct Overhead {
  std::uint32_t rank = 0;
  double overhead_ms = 0;  // per step, on the training threads
  double step_ms = 0;      // the whole step
  double share() const { return overhead_ms / step_ms; }
};

// By model_index, from the last segment that was long enough to report it. Facts that are not
// positive numbers are left out.
std::map<std::uint32_t, Overhead> overheads(std::span<const Fact> facts);

// "presum took 2.4 ms of a step of 111 ms on rank 0: 2.2 %, ...".
std::string overhead_text(const Overhead& time);
nlohmann::ordered_json overhead_json(const Overhead& time);

}  // namespace presum::cli
