// SPDX-License-Identifier: Apache-2.0
// Samples that workers draw, and which of them had been drawn before, and by whom.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "checks/engine/batches.h"
#include "checks/engine/per_worker.h"
#include "presum/step_record.h"

namespace presum::checks {

// A pass over the data by its number, over all data sets: ranks may hold shards of their own.
struct DrawnPass {
  // How two draws are known to be of the same sample.
  enum class Identity : std::uint8_t {
    kIndex,  // by index: a sampler splits one data set among the workers
    kRow,    // by row hash; indices, where known, tell apart records that are equal
  };
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};

  std::uint64_t id = 0;  // of all that were followed
  std::uint64_t number = 0;
  Identity identity = Identity::kRow;
  std::uint32_t bits = 0;   // samples are followed whose hash is divisible by 2^bits
  std::uint64_t drawn = 0;  // rows, whether or not they are followed; not of steps in two passes
  std::uint64_t first_step = kNever;  // with a draw that is followed
  std::uint64_t last_step = 0;        // with a worker in it

  bool went_on() const { return last_step > first_step && first_step != kNever; }
  bool follows(std::uint64_t sample) const;
};

// A draw of this step, of a sample that had been drawn before: in the same pass or, where samples
// are known by index, in the one before.
struct DrawnAgain {
  std::uint64_t pass = 0;    // DrawnPass::id
  std::uint64_t sample = 0;  // hash
  std::uint64_t row = 0;     // what was drawn, as a hash; 0: not known
  std::uint64_t step = 0;
  std::uint32_t rank = 0;
  bool in_pass = true;        // else it was in the one before
  bool same_index = false;    // both are known
  bool shares_place = false;  // the rank shares its sampler's place with one that drew before it
  std::uint64_t first_row = 0;
  std::uint64_t first_step = 0;
  std::uint32_t first_rank = 0;
};

// The draws of the last two passes. At most 262,144 samples of a pass are remembered: where there
// are more, those whose hash is divisible by a power of two. What a step draws while a pass ends
// within it is left out, as is what is drawn in a pass older than these. Memory: some 16 MiB a
// pass, and as much for what a pass that began anew had drawn. Not synchronized.
class Draws {
 public:
  enum class Followed : std::uint8_t {
    kYes,
    kNoSamples,   // none were seen
    kNoLoader,    // its pass over the data is not known
    kSharedRows,  // all workers have the same, in batches that differ: they are no samples
    kNotNow,  // another rank of its place is, to which this one's draws are held; or a pass ends
  };

  // REQUIRES: ascending steps.
  void see(const StepRecord& record, std::span<const Batch> batches);
  // Of the last step, in the order of its workers.
  std::span<const Followed> followed() const { return followed_; }
  // In the order in which they were drawn.
  std::span<const DrawnAgain> again() const { return again_; }
  // At most two, by their numbers.
  std::vector<DrawnPass> passes() const;

 private:
  struct First {
    std::uint64_t index = 0;  // or kNoIndex
    std::uint64_t row = 0;
    std::uint64_t step = 0;
    std::uint32_t rank = 0;
  };
  using Samples = std::unordered_map<std::uint64_t, First>;
  struct Following {
    DrawnPass pass;
    Samples first;
    bool doubled = false;  // some sample was drawn twice
    Samples before;        // of the pass of the same number that it took the place of
  };
  struct Place {
    std::uint64_t pass = 0;
    std::uint64_t batch = 0;
    std::uint64_t first_rows = 0;  // of its first step in a pass, all of them
  };
  static constexpr std::uint64_t kNoIndex = ~std::uint64_t{0};

  void begin_anew(const StepRecord& record);
  void begin_anew(Following& pass);
  bool ends_within(const StepRecord& record, const std::vector<bool>& leads, Following& pass);
  Following* find(std::uint64_t number);
  Following* pass_of(const StepRecord& record, const WorkerRecord& worker);
  Followed draw(const StepRecord& record, const WorkerRecord& worker, bool shared, bool leads);
  void draw(Following& pass, std::uint64_t sample, const First& mine, bool leads);
  const First* drawn_before(const Following& pass, std::uint64_t sample) const;
  static void thin_to(std::uint32_t bits, Following& pass);

  std::vector<Following> passes_;      // at most two
  std::uint64_t ids_ = 0;              // that were given
  std::vector<std::uint64_t> ending_;  // numbers of passes that end within this step
  std::set<std::uint32_t> followers_;  // replicas that share a sampler's place with another, as of
                                       // the last record of all workers
  PerWorker<Place> places_;            // at the record before
  std::vector<Followed> followed_;
  std::vector<DrawnAgain> again_;
};

}  // namespace presum::checks
