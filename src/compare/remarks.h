// SPDX-License-Identifier: Apache-2.0
// What was not compared, and what was assumed.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "compare/inputs.h"
#include "compare/step_pair.h"
#include "compare/timeline.h"

namespace presum::compare {

// How often each stage could not be compared, and why.
struct UncomparedSteps {
  static constexpr std::size_t kStates = 6;
  std::array<std::array<std::uint64_t, kStates>, kStages> states{};
  std::uint64_t lacking = 0;    // steps at which one run lacks a worker
  std::uint64_t positions = 0;  // steps of whose samples the positions alone were compared
  std::uint64_t skipping = 0;   // steps at which a worker left gradients out
  bool same_salt = false;

  void count(Stage stage, StageResult::State state) {
    ++states[static_cast<std::size_t>(stage)][static_cast<std::size_t>(state)];
  }
};

// Optimizer steps that a worker made in one run and not in the other.
class OptimizerSteps {
 public:
  using Segments = std::pair<std::uint32_t, std::uint32_t>;  // of A and B
  // The next common step. Counts begin anew where other segments meet.
  void add(const StepPair& pair, const Segments& segments);
  void remark(ModelComparison& model) const;

 private:
  std::optional<Segments> segments_;
  std::map<std::uint32_t, std::int64_t> ahead_;  // of B, optimizer steps of A's ranks
  std::optional<std::uint64_t> first_;           // step at which some worker's numbers went apart
  std::vector<std::uint32_t> fewer_in_a_, fewer_in_b_;
};

void list_not_compared(const UncomparedSteps& uncompared, ModelComparison& model);
// Random generators that are left out because nobody seeded them.
void remark_unseeded(const FingerprintKinds& unseeded, ModelComparison& model);
// Random generators that differ without a consequence. `equal_after`: the first step that is equal
// all the same.
void remark_random_generators(const std::optional<std::uint64_t>& equal_after,
                              ModelComparison& model);
void remark_unclosed(Side run, std::span<const SegmentInfo> segments, ModelComparison& model);
void remark_restarts(Side run, const std::vector<SegmentSpan>& spans, ModelComparison& model);

}  // namespace presum::compare
