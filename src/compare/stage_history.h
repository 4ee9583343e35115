// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "compare/compare.h"
#include "compare/remarks.h"
#include "compare/segment_pair.h"
#include "compare/step_pair.h"

namespace presum::compare {

// The last step at which each worker was compared and equal in one stage.
class LastEqualByRank {
 public:
  void equal(std::uint64_t step, const std::vector<std::uint32_t>& ranks) {
    for (const std::uint32_t rank : ranks) steps_[rank] = step;
    if (!ranks.empty()) last_ = step;
  }
  // The last step at which all of them were equal; of no rank: any worker. None: one never was.
  std::optional<std::uint64_t> of(const std::vector<std::uint32_t>& ranks) const {
    auto out = last_;
    for (const std::uint32_t rank : ranks) {
      const auto found = steps_.find(rank);
      if (found == steps_.end()) return std::nullopt;
      out = std::min(out, std::optional(found->second));
    }
    return out;
  }

 private:
  std::map<std::uint32_t, std::uint64_t> steps_;
  std::optional<std::uint64_t> last_;
};

// Of one step, in the order of stages; all but kFinal.
using StageResults = std::array<StageResult, kStages - 1>;

// What comparing the common steps of one model came to, stage by stage. Fills in the stages of a
// ModelComparison, and keeps what dates their first differences. Lifetime: the model outlives it.
class StageHistory {
 public:
  explicit StageHistory(ModelComparison& model) : model_(model) {}

  // The next common step.
  void add_step(StageResults results, const StepPair& pair);
  // The parameters after the last step; `last` is the last common one.
  void add_final(const StageResult& result, const StepPair& last);
  // After all of these: says whether the numbers of workers are all that differs, or else which
  // stage differs first. Facts that define the training count as settings, from the step on where
  // they differ. `hashed`: all parameters were compared while they trained.
  void finish(const SegmentPair& segments, bool hashed);

  // The first step that is equal although random generators differ.
  const std::optional<std::uint64_t>& equal_after_random() const { return equal_after_random_; }
  // The last common step.
  const std::optional<std::uint64_t>& last_step() const { return previous_; }
  const UncomparedSteps& uncompared() const { return uncompared_; }

 private:
  // What was known when a stage first differed.
  struct Context {
    std::vector<Stage> unseen;              // not compared at the step
    std::optional<std::uint64_t> previous;  // the common step before it
  };

  void add(Stage stage, const StageResult& result, std::uint64_t step);
  void note_equal(Stage stage, StageResult& result, const StepPair& pair);
  void note_worlds(const StageResult& configuration, const StepPair& pair);
  void note_outcome(const StageResults& results, const StepPair& pair);
  void add_facts(const SegmentPair& segments);
  bool only_worlds_differ(bool hashed) const;
  void choose_first();
  std::optional<Bracket> bracket() const;

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
