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
  std::uint64_t lacking = 0;    // steps at which a run lacks a rank
  std::uint64_t positions = 0;  // steps whose samples were compared by position only
  std::uint64_t skipping = 0;   // steps at which a rank skipped gradients
  bool same_salt = false;

  void count(Stage stage, StageResult::State state) {
    ++states[static_cast<std::size_t>(stage)][static_cast<std::size_t>(state)];
  }
};

// Optimizer steps that a rank made in one run but not in the other.
class OptimizerSteps {
 public:
  using Segments = std::pair<std::uint32_t, std::uint32_t>;  // of A and B
  // Adds the next common step. Counting restarts whenever the pair of segments changes.
  void add(const StepPair& pair, const Segments& segments);
  void remark(ModelComparison& model) const;

 private:
  std::optional<Segments> segments_;
  // Optimizer steps by which B is ahead, by rank of A.
  std::map<std::uint32_t, std::int64_t> ahead_;
  // The step at which some rank's counts first diverged.
  std::optional<std::uint64_t> first_;
  std::vector<std::uint32_t> fewer_in_a_, fewer_in_b_;
};

void list_not_compared(const UncomparedSteps& uncompared, ModelComparison& model);
// Random generators that are left out because they were not seeded.
void remark_unseeded(const FingerprintKinds& unseeded, ModelComparison& model);
// Random generators that differ without any effect. `equal_after`: the first step that is equal all
// the same.
void remark_random_generators(const std::optional<std::uint64_t>& equal_after,
                              ModelComparison& model);
void remark_unclosed(Side run, std::span<const SegmentInfo> segments, ModelComparison& model);
void remark_restarts(Side run, const std::vector<SegmentSpan>& spans, ModelComparison& model);

}  // namespace presum::compare
