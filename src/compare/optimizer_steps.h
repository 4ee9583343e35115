// SPDX-License-Identifier: Apache-2.0
// Optimiser steps that a worker made in one run and not in the other.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "compare/step_pair.h"

namespace presum::compare {

class OptimizerSteps {
 public:
  using Segments = std::pair<std::uint32_t, std::uint32_t>;  // of A and B
  // The next common step. Counts begin anew where other segments meet.
  void add(const StepPair& pair, const Segments& segments);
  void remark(ModelComparison& model) const;

 private:
  std::optional<Segments> segments_;
  std::map<std::uint32_t, std::int64_t> ahead_;  // of B, optimiser steps of A's ranks
  std::optional<std::uint64_t> first_;           // step at which some worker's numbers went apart
  std::vector<std::uint32_t> fewer_in_a_, fewer_in_b_;
};

}  // namespace presum::compare
