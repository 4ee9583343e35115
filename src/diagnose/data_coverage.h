// SPDX-License-Identifier: Apache-2.0
// data-coverage.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "diagnose/step_context.h"

namespace presum::diagnose {

// Whether a sampler (its description, and its own length: 0 where that is not known) deals every
// sample, as torch's own and Accelerate's around them do.
bool deals_all(std::string_view sampler, std::uint64_t own, std::uint64_t length);

// A bit for each sample of a data set.
class SampleSet {
 public:
  explicit SampleSet(std::uint64_t length) : words_((length + 63) / 64) {}

  void insert(std::uint64_t index) { words_[index / 64] |= std::uint64_t{1} << (index % 64); }
  void unite(const SampleSet& other);  // REQUIRES: of the same length
  std::uint64_t count() const;
  std::uint64_t end() const;  // the largest index plus one; 0 where it is empty

 private:
  std::vector<std::uint64_t> words_;
};

// Samples that a whole pass over a data set left out, on all workers together: passes that a loader
// ended, of which every batch was seen. By index, where indices are known and the data sets that
// are followed have no more than 2^27 samples together; else by the number of rows, which is at
// least the number of samples.
class DataCoverage {
 public:
  void update(const StepContext& context, SignalLog& log);
  void farewell(std::uint32_t rank, const FinalState& last, const Roster& roster, SignalLog& log);

 private:
  using Data = std::uint64_t;  // which data set
  // Where a worker stands in a data set.
  struct Reader {
    std::uint32_t rank = 0;
    std::uint64_t pass = 0;
    std::uint64_t batch = 0;  // the last of the step before
    bool reading = false;
  };
  // Where a worker stood when it left.
  struct Farewell {
    std::uint64_t pass = 0;
    std::uint64_t batch = 0;
    bool ended = false;
  };
  // One pass of all workers.
  struct Pass {
    std::uint64_t length = 0;
    std::uint64_t first_step = 0;
    std::uint64_t last_step = 0;
    std::uint64_t rows = 0;
    std::uint64_t rows_at_once = 0;  // the most that a worker read in a step
    std::uint64_t own = 0;           // what the sampler says of its length; 0: unknown
    std::uint32_t workers = 0;       // of the run
    std::size_t open = 0;            // workers that have not ended it
    Ranks ranks;
    SampleSet drawn{0};
    bool indexed = false;
    bool whole = true;
  };
  // What was found of a data set so far.
  struct History {
    std::uint64_t passes = 0;  // in a row that left samples out
    std::uint64_t first_step = 0;
    SampleSet drawn{0};  // in any of them
    std::uint64_t length = 0;
    bool indexed = false;
    std::size_t readers = 0;
  };
  struct Missing {
    std::uint64_t samples = 0;  // left out
    std::uint64_t length = 0;   // of those that the sampler is about
    std::uint64_t slack = 0;    // what dropped and filled-up batches account for
  };

  void read(const StepContext& context, const WorkerRecord& worker, SignalLog& log);
  Pass& enter(const StepContext& context, const WorkerRecord& worker, Data data,
              const Reader& reader);
  void take_leave(std::uint32_t rank, const Roster& roster, SignalLog& log);
  void leave(Data data, Reader& reader, bool ended, const Roster& roster, SignalLog& log);
  void judge(Data data, const Pass& pass, const Roster& roster, SignalLog& log);
  static void draw(const WorkerRecord& worker, std::uint64_t step, Pass& pass);
  static Missing missing_of(const Pass& pass, std::string_view sampler);
  static Signal signal_of(const Pass& pass, const History& history, const Missing& missing,
                          bool told);
  std::uint64_t samples_followed() const;

  std::map<std::pair<std::uint32_t, Data>, Reader> readers_;  // by replica
  std::map<std::pair<Data, std::uint64_t>, Pass> passes_;     // by number
  std::map<Data, History> histories_;
  std::map<std::uint32_t, Farewell> farewells_;  // by rank; their last steps may be yet to come
};

}  // namespace presum::diagnose
