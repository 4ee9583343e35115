// SPDX-License-Identifier: Apache-2.0
// How much of a run was examined, and the verdict that follows from that and the findings.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/step_span.h"
#include "presum/finding.h"
#include "presum/run_log.h"
#include "presum/step_record.h"

namespace presum::judge {

using CheckCounts = std::array<std::uint64_t, 4>;  // by CheckRecord::State

// Counts the steps of one model in one segment, as they arrive. Not synchronized.
class ModelSteps {
 public:
  explicit ModelSteps(const ModelKey& model) : model_(model) {}

  // REQUIRES: a step of this model, above the previous one.
  void add(const StepRecord& step);

  const ModelKey& model() const { return model_; }
  std::uint64_t logged() const { return logged_; }
  // Steps with at least two ranks and without packets still missing.
  std::uint64_t compared() const { return compared_; }
  // Lost reductions; plus lost unreduced steps if every step is recorded.
  std::uint64_t lost() const {
    return reduced_.lost() + (reduced_.every_one() ? unreduced_.lost() : 0);
  }
  std::uint64_t workers_expected() const { return workers_expected_; }
  std::uint64_t workers_seen() const { return workers_seen_; }  // most at one step

 private:
  ModelKey model_;
  base::StepSpan reduced_;    // by the number of reductions
  base::StepSpan unreduced_;  // by their own number
  std::uint64_t logged_ = 0;
  std::uint64_t compared_ = 0;
  std::uint64_t workers_expected_ = 0;
  std::uint64_t workers_seen_ = 0;
};

struct Coverage {
  std::uint64_t steps_logged = 0;  // as training_steps() counts them
  // Of the model or data-parallel group with the largest count, over all segments: lost steps as
  // base::StepSpan counts them, and steps with at least two ranks and no packet missing.
  std::uint64_t steps_lost = 0;
  std::uint64_t steps_compared = 0;
  std::uint64_t workers_expected = 0;
  std::uint64_t workers_seen = 0;  // most at one step
  CheckCounts checks{};            // over all models and segments
  // For the model that was watched least, in its last segment and those whose detectors it
  // continues: the compared steps, and how many a lasting difference needs to be established
  // (detect::least_steps); 0 without two ranks.
  std::uint64_t statistics_steps = 0;
  std::uint64_t statistics_need = 0;
  std::uint64_t statistics_workers = 0;
  std::uint32_t statistics_since = 0;  // the segment in which its detectors began; 0: not known

  bool statistics_judged() const { return statistics_steps >= statistics_need; }

  // The number of checks that were possible.
  std::uint64_t checks_made() const;
};

// Splits steps, in the order of RunLog::steps(), wherever the model or the segment changes.
std::vector<std::span<const StepRecord>> cut(std::span<const StepRecord> steps);
std::vector<ModelSteps> models_of(std::span<const StepRecord> steps);

// `models` and `continuations` ascend by model.
Coverage cover(std::span<const ModelSteps> models, std::span<const Continuation> continuations,
               const CheckCounts& checks);

// "statistics need 26 steps with 2 workers, and saw 20"; if the detectors started over in a later
// segment, since when; empty if they saw enough.
std::string statistics_text(const Coverage& coverage);

// A finding of severity warning or above makes the run inconsistent; a finding of a check of times
// alone does so only if it is critical. The evidence is insufficient with fewer than five compared
// steps, if no check was possible, or if the record is known to be incomplete: lost steps, or not
// `complete`.
Verdict verdict(std::span<const Finding> findings, const Coverage& coverage, bool complete);

}  // namespace presum::judge
