// SPDX-License-Identifier: Apache-2.0
// The hashes of parameters in common steps: which tensors they are of, and when they were equal.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "compare/step_pair.h"
#include "compare/timeline.h"

namespace presum::compare {

// The last step at which parameters were compared and equal.
class LastEqualHashes {
 public:
  // `layers`: those that were hashed; none where a slice is empty.
  void equal(std::uint64_t step, const HashCoverage& coverage,
             const std::vector<std::string>& layers);
  // No hash is there: the slice holds no parameters, or they were not kept.
  void empty(const HashCoverage& coverage) {
    if (coverage.slice) slices_[*coverage.slice].empty = true;
  }
  // Whether every slice, or all parameters at once, was hashed after step 0.
  bool all_after_start() const;
  // The step of the parameters of a slice, or of layers in slices that are not known. None: never.
  std::optional<std::uint64_t> of(const HashCoverage& coverage,
                                  const std::vector<std::string>& layers) const;

 private:
  struct Slice {
    std::optional<std::uint64_t> step;
    bool empty = false;  // at some step
    std::set<std::string> layers;
  };
  std::optional<std::uint64_t> of_groups_in(const std::vector<std::string>& layers) const;

  std::optional<std::uint64_t> whole_;
  std::array<Slice, kSlices> slices_;
};

// Which tensors the states of two steps are of; `every`: every how many steps each run records.
HashCoverage hash_coverage(const TimelineReader::Step& a, std::uint64_t every_a,
                           const TimelineReader::Step& b, std::uint64_t every_b);

class ParameterHashes {
 public:
  // Notes in the pair whether a slice has the same tensors in both runs. Call it for every step.
  void match_tensors(StepPair& pair);
  // Takes the result of comparing a step's parameters, and adds to a difference its last_seen.
  void record(StageResult& result, const StepPair& pair);
  // The last step at which what differs was seen equal. None: never.
  std::optional<std::uint64_t> last_equal(const HashCoverage& coverage,
                                          const Difference& found) const;
  // Whether all parameters were hashed after step 0.
  bool all_after_start() const { return last_equal_.all_after_start(); }

 private:
  LastEqualHashes last_equal_;
  bool same_parameters_ = true;    // have the same numbers in both runs
  bool same_buffers_ = true;       // likewise
  bool compared_in_part_ = false;  // slices were compared without the one or the other
};

}  // namespace presum::compare
