// SPDX-License-Identifier: Apache-2.0
// Samples that ranks draw, which of them were drawn before, and by which rank.
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

// A pass over the data by its number, over all datasets: ranks may hold their own shards.
struct DrawnPass {
  // How two draws are known to be of the same sample.
  enum class Identity : std::uint8_t {
    kIndex,  // by index: a sampler splits one dataset among the ranks
    kRow,    // by row hash; known indices tell equal records apart
  };
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};

  std::uint64_t id = 0;  // unique among all followed passes
  std::uint64_t number = 0;
  Identity identity = Identity::kRow;
  std::uint32_t bits = 0;             // only samples whose hash is divisible by 2^bits are followed
  std::uint64_t drawn = 0;            // rows, followed or not; excludes steps in two passes
  std::uint64_t first_step = kNever;  // with a followed draw
  std::uint64_t last_step = 0;        // with a rank in it

  bool went_on() const { return last_step > first_step && first_step != kNever; }
  bool follows(std::uint64_t sample) const;
};

// A draw in this step of a sample that was drawn before: in the same pass or, for samples known by
// index, in the previous one.
struct DrawnAgain {
  std::uint64_t pass = 0;    // DrawnPass::id
  std::uint64_t sample = 0;  // hash
  std::uint64_t row = 0;     // hash of the drawn row; 0: unknown
  std::uint64_t step = 0;
  std::uint32_t rank = 0;
  bool in_pass = true;        // false: it was in the previous pass
  bool same_index = false;    // both indices are known
  bool shares_place = false;  // another rank of its sampler position drew before it
  std::uint64_t first_row = 0;
  std::uint64_t first_step = 0;
  std::uint32_t first_rank = 0;
};

// The draws of the last two passes. Remembers at most 262,144 samples of a pass; with more, those
// whose hash is divisible by a power of two. Skips the draws of a step within which a pass ends,
// and of older passes. Memory: about 16 MiB per pass, and as much for the earlier draws of a
// restarted pass. Not synchronized.
class Draws {
 public:
  enum class Followed : std::uint8_t {
    kYes,
    kNoSamples,   // none were seen
    kNoLoader,    // its pass over the data is unknown
    kSharedRows,  // all ranks share them in different batches, so they are not samples
    kChanged,     // only by rows that the program changed, and hardly any sample came again
    kNotNow,      // another rank of its position is followed instead, or a pass ends
  };

  // REQUIRES: ascending steps.
  void see(const StepRecord& record, std::span<const Batch> batches);
  // Of the last step, in the order of its ranks.
  std::span<const Followed> followed() const { return followed_; }
  // In the order of the draws.
  std::span<const DrawnAgain> again() const { return again_; }
  // At most two, by number.
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
    Samples before;        // of the earlier pass with the same number
  };
  struct Place {
    std::uint64_t pass = 0;
    std::uint64_t batch = 0;
    std::uint64_t first_rows = 0;  // hash of all rows of its first step in a pass
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
  std::uint64_t ids_ = 0;              // ids given so far
  std::vector<std::uint64_t> ending_;  // numbers of passes that end within this step
  bool changed_ = false;               // rows that the loader yielded differently were seen
  std::set<std::uint64_t> recurred_;   // samples that came in two steps, up to a few
  std::set<std::uint32_t> followers_;  // replicas that share another's sampler position, as of
                                       // the last complete record
  PerWorker<Place> places_;            // at the previous record
  std::vector<Followed> followed_;
  std::vector<DrawnAgain> again_;
};

}  // namespace presum::checks
