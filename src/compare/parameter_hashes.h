// SPDX-License-Identifier: Apache-2.0
// The hashes of parameters in common steps: which tensors they cover, and when they were last
// equal.
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
  // `layers`: the layers that were hashed; none if a slice is empty.
  void equal(std::uint64_t step, const HashCoverage& coverage,
             const std::vector<std::string>& layers);
  // There is no hash: the slice has no parameters, or they were not kept.
  void empty(const HashCoverage& coverage) {
    if (coverage.slice) slices_[*coverage.slice].empty = true;
  }
  // Whether every slice, or all parameters at once, was hashed after step 0.
  bool all_after_start() const;
  // The last step at which the parameters of a slice, or of layers in unknown slices, were equal.
  // Empty: never.
  std::optional<std::uint64_t> of(const HashCoverage& coverage,
                                  const std::vector<std::string>& layers) const;

 private:
  struct Slice {
    std::optional<std::uint64_t> step;
    bool empty = false;  // without hashes at some step
    std::set<std::string> layers;
  };
  std::optional<std::uint64_t> of_groups_in(const std::vector<std::string>& layers) const;

  std::optional<std::uint64_t> whole_;
  std::array<Slice, kSlices> slices_;
};

// Which tensors the states of two steps cover; `every`: the distance between recorded steps of each
// run.
HashCoverage hash_coverage(const TimelineReader::Step& a, std::uint64_t every_a,
                           const TimelineReader::Step& b, std::uint64_t every_b);

class ParameterHashes {
 public:
  // Notes in the pair whether a slice contains the same tensors in both runs. Call it for every
  // step.
  void match_tensors(StepPair& pair);
  // Takes the result of comparing a step's parameters; sets last_seen of a difference.
  void record(StageResult& result, const StepPair& pair);
  // The last step at which the part that differs was equal. Empty: never.
  std::optional<std::uint64_t> last_equal(const HashCoverage& coverage,
                                          const Difference& found) const;
  // Whether all parameters were hashed after step 0.
  bool all_after_start() const { return last_equal_.all_after_start(); }

 private:
  LastEqualHashes last_equal_;
  bool same_parameters_ = true;    // parameters have the same numbers in both runs
  bool same_buffers_ = true;       // buffers have the same numbers in both runs
  bool compared_in_part_ = false;  // slices were compared without parameters or without buffers
};

}  // namespace presum::compare
