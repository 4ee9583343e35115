// SPDX-License-Identifier: Apache-2.0
// Passes over data sets, as loaders number them: which samples all workers drew in each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "checks/engine/split.h"
#include "presum/packet.h"
#include "presum/step_record.h"

namespace presum::checks {

// A bit for each sample of a data set.
class SampleSet {
 public:
  explicit SampleSet(std::uint64_t length) : words_((length + 63) / 64) {}

  void insert(std::uint64_t index) { words_[index / 64] |= std::uint64_t{1} << (index % 64); }
  bool contains(std::uint64_t index) const {  // REQUIRES: below the length
    return ((words_[index / 64] >> (index % 64)) & 1) != 0;
  }
  void unite(const SampleSet& other);  // REQUIRES: of the same length
  std::uint64_t count() const;
  std::uint64_t end() const;  // the largest index plus one; 0 where it is empty

 private:
  std::vector<std::uint64_t> words_;
};

// One pass over one data set, of all its readers together.
struct Pass {
  std::uint64_t data = 0;  // which data set: data_of
  std::uint64_t number = 0;
  std::uint64_t length = 0;    // samples of the data set
  std::uint64_t contents = 0;  // what it holds, as a hash; 0: not known
  std::uint64_t own = 0;       // what the sampler says of its length; 0: not known
  std::uint64_t first_step = 0;
  std::uint64_t last_step = 0;
  std::uint64_t rows = 0;          // at least as many as samples
  std::uint64_t rows_at_once = 0;  // the most that a worker read in a step
  // Rows that loaders dealt and nobody trained on: of batches that models were given all of before,
  // without gradients, and of others.
  std::uint64_t passed_over = 0;
  std::uint64_t cut = 0;
  std::uint64_t untrained_at_once = 0;  // the most of both that a worker told: of a last batch none
  std::uint32_t workers = 0;            // of the run
  Ranks ranks;                          // its readers
  SampleSet drawn{0};                   // where `indexed`
  bool indexed = false;                 // the index of every row is known
  bool is_first = true;                 // of each of its readers over this data set
  bool from_start = true;               // with its first batch, on each
  bool gapless = true;                  // every batch since then was seen, in its order
  bool ended = true;                    // a loader came to its end, on each
  bool all_workers = true;              // no step lacked a worker

  bool whole() const { return from_start && gapless && ended; }
};

// Samples by index of at most 2^27 together; of passes beyond that rows are counted. At most 4,096
// passes, and readers: where there are more no pass is `gapless`. Not synchronized.
class Passes {
 public:
  // REQUIRES: ascending steps.
  void see(const StepRecord& record);
  // A worker's last words. Its last steps may be yet to come.
  void farewell(std::uint32_t rank, const FinalState& last);
  // Those that all of their readers have left since the last call.
  std::vector<Pass> take_over() { return std::exchange(over_, {}); }

 private:
  using Data = std::uint64_t;
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
  struct Open {
    Pass pass;
    std::size_t readers = 0;  // that have not left it
  };

  void read(const StepRecord& record, const WorkerRecord& worker);
  Open& enter(const StepRecord& record, const WorkerRecord& worker, const Reader& reader);
  void lose_readers();
  void take_leave(std::uint32_t rank);
  void leave(Data data, Reader& reader, bool ended);
  std::uint64_t samples_followed() const;

  std::map<std::pair<std::uint32_t, Data>, Reader> readers_;  // by replica
  std::map<std::pair<Data, std::uint64_t>, Open> passes_;     // by number
  std::map<Data, std::size_t> readers_of_;
  bool too_many_ = false;                        // readers
  std::map<std::uint32_t, Farewell> farewells_;  // by rank; their last steps may be yet to come
  std::vector<Pass> over_;
};

// Whether a loader numbers the worker's batches, of a data set that has a length.
bool reads_passes(const WorkerRecord& worker);

}  // namespace presum::checks
