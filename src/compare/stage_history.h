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

// The last step at which each rank was compared and equal in one stage.
class LastEqualByRank {
 public:
  void equal(std::uint64_t step, const std::vector<std::uint32_t>& ranks) {
    for (const std::uint32_t rank : ranks) steps_[rank] = step;
    if (!ranks.empty()) last_ = step;
  }
  // The last step at which all of `ranks` were equal; without ranks, the last step at which any
  // rank was. Empty: some rank never was.
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

// Results for one step, in the order of stages; all stages except kFinal.
using StageResults = std::array<StageResult, kStages - 1>;

// The results of comparing the common steps of one model, stage by stage. Fills in the stages of a
// ModelComparison, and keeps what is needed to date their first differences. `model` must outlive
// this object.
class StageHistory {
 public:
  explicit StageHistory(ModelComparison& model) : model_(model) {}

  // Adds the next common step.
  void add_step(StageResults results, const StepPair& pair);
  // Adds the parameters after the last step; `last` is the last common step.
  void add_final(const StageResult& result, const StepPair& last);
  // Called after all of these: decides whether only the world sizes differ and, if not, which stage
  // differs first. Facts that define the training count as settings from the step on at which they
  // differ. `hashed`: all parameters were compared during training.
  void finish(const SegmentPair& segments, bool hashed);

  // The first step that is equal although random generators differ.
  const std::optional<std::uint64_t>& equal_after_random() const { return equal_after_random_; }
  // The last common step.
  const std::optional<std::uint64_t>& last_step() const { return previous_; }
  const UncomparedSteps& uncompared() const { return uncompared_; }

 private:
  // The situation when a stage first differed.
  struct Context {
    std::vector<Stage> unseen;              // stages that were not compared at the step
    std::optional<std::uint64_t> previous;  // the previous common step
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
  std::optional<std::uint64_t> previous_;  // the last common step
  std::array<LastEqualByRank, kStages> equal_;
  std::array<Context, kStages> contexts_;
  std::set<std::pair<std::uint32_t, std::uint32_t>> worlds_;  // world sizes that differ
  // Settings differ, apart from the world size.
  bool settings_differ_ = false;
  // Facts that define the training differ.
  bool facts_differ_ = false;
  std::optional<std::uint64_t> equal_after_random_;
};

}  // namespace presum::compare
