// SPDX-License-Identifier: Apache-2.0
// The hashes of parameters in common steps: which tensors they are of, and when they were equal.
#pragma once

#include <cstdint>
#include <optional>

#include "compare/last_equal.h"
#include "compare/step_pair.h"
#include "compare/timeline.h"

namespace presum::compare {

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
