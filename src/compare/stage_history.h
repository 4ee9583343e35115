// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "compare/compare.h"
#include "compare/last_equal.h"
#include "compare/remarks.h"
#include "compare/segment_pair.h"
#include "compare/step_pair.h"

namespace presum::compare {

// Of one step, in the order of stages; all but kFinal.
using StageResults = std::array<StageResult, kStages - 1>;

// What comparing the common steps of one model came to, stage by stage. Fills in the stages of a
// ModelComparison, and keeps what dates their first differences. Lifetime: the model outlives it.
class StageHistory {
 public:
  // What was known when a stage first differed.
  struct Context {
    std::vector<Stage> unseen;              // not compared at the step
    std::optional<std::uint64_t> previous;  // the common step before it
  };

  explicit StageHistory(ModelComparison& model) : model_(model) {}

  // The next common step.
  void add_step(StageResults results, const StepPair& pair);
  // The parameters after the last step; `last` is the last common one.
  void add_final(StageResult result, const StepPair& last);
  // Facts that define the training count as settings, from the step on where they differ.
  void add_facts(const SegmentPair& segments);

  const Context& context_of(Stage stage) const {
    return contexts_[static_cast<std::size_t>(stage)];
  }
  // The step after which a stage's first difference began. REQUIRES: the stage differs.
  std::optional<std::uint64_t> equal_before(Stage stage) const;
  // The first step that is equal although random generators differ.
  const std::optional<std::uint64_t>& equal_after_random() const { return equal_after_random_; }
  // The last common step.
  const std::optional<std::uint64_t>& last_step() const { return previous_; }
  const UncomparedSteps& uncompared() const { return uncompared_; }

  // Where they differ, each once, ascending.
  std::vector<WorkerCounts> numbers_of_workers() const;
  // Whether the numbers of workers are all that differs, and what updates came to was compared: all
  // parameters (`hashed`: while they trained), or a sum after them.
  bool only_worlds_differ(bool hashed) const;

 private:
  void add(Stage stage, const StageResult& result, std::uint64_t step);
  void note_equal(Stage stage, StageResult& result, const StepPair& pair);
  void note_worlds(const StageResult& configuration, const StepPair& pair);
  void note_outcome(const StageResults& results, const StepPair& pair);
  std::optional<std::uint64_t> last_equal_before(std::uint64_t step) const;

  ModelComparison& model_;
  UncomparedSteps uncompared_;
  std::optional<std::uint64_t> previous_;  // common step
  std::array<LastEqualByRank, kStages> equal_;
  std::array<Context, kStages> contexts_;
  std::set<std::pair<std::uint32_t, std::uint32_t>> worlds_;  // numbers of workers that differ
  bool settings_differ_ = false;                              // besides the number of workers
  bool facts_differ_ = false;                                 // that define the training
  std::optional<std::uint64_t> equal_after_random_;
};

}  // namespace presum::compare
