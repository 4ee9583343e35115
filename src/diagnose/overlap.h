// SPDX-License-Identifier: Apache-2.0
// overlapping-data.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "diagnose/repeated_batches.h"
#include "diagnose/step_context.h"

namespace presum::diagnose {

// Draws of one pass over the data. At most 262,144 samples are remembered: where there are more,
// those whose hash is divisible by 2^m, and counts are scaled.
class DataPass {
 public:
  // How two draws are known to be of the same sample.
  enum class Identity : std::uint8_t {
    kIndex,  // by index: a sampler splits one data set among the workers
    kRow,    // by row hash; indices, where known, tell apart records that are equal
  };
  struct Draw {
    std::uint64_t sample = 0;  // hash
    std::uint64_t index = 0;   // or kNoIndex
    std::uint32_t rank = 0;
    std::uint64_t step = 0;
  };
  static constexpr std::uint64_t kNoIndex = ~std::uint64_t{0};

  DataPass(std::uint64_t number, Identity identity) : number_(number), identity_(identity) {}

  void draw(const Draw& draw);
  // Keeps only samples whose hash is divisible by 2^bits from here on.
  void thin_to(std::uint32_t bits);
  // Rows that workers read, whether or not they are drawn one by one.
  void count_rows(std::uint64_t rows) { drawn_ += rows; }
  // What the pass repeats at its end to fill up the last batches is not overlap: a draw of a sample
  // of the first step counts once the pass goes on after it.
  void settle(std::uint64_t step);

  std::uint64_t number() const { return number_; }
  Identity identity() const { return identity_; }
  std::uint64_t drawn() const { return drawn_; }
  bool went_on() const { return settled_ != ~std::uint64_t{0} && settled_ > first_step_; }
  double doubled() const { return doubled_; }  // draws beyond a sample's first
  double between() const { return between_; }  // of them, by another worker than the first
  double exact() const { return exact_; }      // of them, with equal indices
  double distinct() const;
  struct Part {
    double involved = 0;  // doubled draws in which the rank was the first to draw, or drew again
    double again = 0;     // of them, that it drew again
  };
  const std::map<std::uint32_t, Part>& by_rank() const { return by_rank_; }

 private:
  struct First {
    std::uint64_t index = 0;
    std::uint64_t step = 0;
    std::uint32_t rank = 0;
  };
  struct Double {
    Draw draw;
    std::uint32_t first_rank = 0;
    bool exact = false;
  };
  void count(const Double& again);

  std::uint64_t number_;
  Identity identity_;
  std::uint32_t bits_ = 0;
  std::uint64_t first_step_ = ~std::uint64_t{0};
  std::uint64_t settled_ = ~std::uint64_t{0};
  std::unordered_map<std::uint64_t, First> first_;
  std::vector<Double> waiting_;
  std::uint64_t drawn_ = 0;
  double doubled_ = 0;
  double between_ = 0;
  double exact_ = 0;
  std::map<std::uint32_t, Part> by_rank_;
};

class Overlap {
 public:
  void update(const StepContext& context, SignalLog& log);

 private:
  struct Totals {
    double doubled = 0;
    double drawn = 0;
  };
  struct Place {
    std::uint64_t pass = 0;
    std::uint64_t batch = 0;
    std::uint64_t first_rows = 0;  // of its first step in a pass, all of them
  };
  void begin_anew(const StepRecord& record);
  void draw(const StepContext& context, const WorkerRecord& worker, DataPass& pass) const;
  DataPass* pass_of(const StepContext& context, const WorkerRecord& worker);
  bool ends_within(const StepRecord& record, const std::vector<const WorkerRecord*>& workers,
                   DataPass& pass);
  void finish(const DataPass& pass);
  void report(const StepContext& context, const DataPass& pass, SignalLog& log) const;

  std::vector<DataPass> passes_;  // at most two, ascending
  Totals finished_;               // of finished passes in which samples were doubled
  PerWorker<Place> places_;       // at the record before
  RepeatedBatches repeats_;
  bool could_show_ = false;  // some pass was long enough
};

}  // namespace presum::diagnose
