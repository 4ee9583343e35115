// SPDX-License-Identifier: Apache-2.0
// Passes over datasets, as loaders number them: the samples that all ranks drew in each.
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

// One bit per sample of a dataset.
class SampleSet {
 public:
  explicit SampleSet(std::uint64_t length) : words_((length + 63) / 64) {}

  void insert(std::uint64_t index) { words_[index / 64] |= std::uint64_t{1} << (index % 64); }
  bool contains(std::uint64_t index) const {  // REQUIRES: below the length
    return ((words_[index / 64] >> (index % 64)) & 1) != 0;
  }
  void unite(const SampleSet& other);  // REQUIRES: of the same length
  std::uint64_t count() const;
  std::uint64_t end() const;  // the largest index plus one; 0 if empty

 private:
  std::vector<std::uint64_t> words_;
};

// One pass over one dataset, by all of its readers together.
struct Pass {
  std::uint64_t data = 0;  // the dataset: data_of
  std::uint64_t number = 0;
  std::uint64_t length = 0;    // samples of the dataset
  std::uint64_t contents = 0;  // hash of its contents; 0: unknown
  std::uint64_t own = 0;       // the sampler's own length; 0: unknown
  std::uint64_t first_step = 0;
  std::uint64_t last_step = 0;
  std::uint64_t rows = 0;          // at least as many as samples
  std::uint64_t rows_at_once = 0;  // the largest number that a rank read in a step
  // Rows that loaders dealt and no rank trained on: of batches that models were given in full
  // before, without gradients, and of other batches.
  std::uint64_t passed_over = 0;
  std::uint64_t cut = 0;
  std::uint64_t untrained_at_once = 0;  // largest sum of both; excludes last batches
  std::uint32_t workers = 0;            // of the run
  Ranks ranks;                          // its readers
  SampleSet drawn{0};                   // if `indexed`
  bool indexed = false;                 // the index of every row is known
  bool is_first = true;                 // for each of its readers, over this dataset
  bool from_start = true;               // with its first batch, on each reader
  bool gapless = true;                  // every batch since then was seen, in order
  bool ended = true;                    // the loader was exhausted, on each reader
  bool all_workers = true;              // no step lacked a rank

  bool whole() const { return from_start && gapless && ended; }
};

// Counts samples by index up to 2^27 together; for passes beyond that, rows. At most 4,096 passes
// and readers; with more, no pass is `gapless`. Not synchronized.
class Passes {
 public:
  // REQUIRES: ascending steps.
  void see(const StepRecord& record);
  // A rank's last packet. Its last steps may arrive later.
  void farewell(std::uint32_t rank, const FinalState& last);
  // The passes that all of their readers have left since the last call.
  std::vector<Pass> take_over() { return std::exchange(over_, {}); }

 private:
  using Data = std::uint64_t;
  // A rank's position in a dataset.
  struct Reader {
    std::uint32_t rank = 0;
    std::uint64_t pass = 0;
    std::uint64_t batch = 0;  // the last batch of the previous step
    bool reading = false;
  };
  // A rank's position when it left.
  struct Farewell {
    std::uint64_t pass = 0;
    std::uint64_t batch = 0;
    bool ended = false;
  };
  struct Open {
    Pass pass;
    std::size_t readers = 0;  // still in the pass
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
  std::map<std::uint32_t, Farewell> farewells_;  // by rank; their last steps may arrive later
  std::vector<Pass> over_;
};

// Whether a loader numbers the rank's batches, over a dataset with a length.
bool reads_passes(const WorkerRecord& worker);

}  // namespace presum::checks
