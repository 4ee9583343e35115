// SPDX-License-Identifier: Apache-2.0
// How much of a run was looked at, and what that and the findings mean together.
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

// Counts the steps of one model in one segment, as they come. Not synchronized.
class ModelSteps {
 public:
  explicit ModelSteps(const ModelKey& model) : model_(model) {}

  // REQUIRES: a step of the model, above the one before.
  void add(const StepRecord& step);

  const ModelKey& model() const { return model_; }
  std::uint64_t logged() const { return logged_; }
  // Of two workers or more, no packet under way.
  std::uint64_t compared() const { return compared_; }
  // Of reductions, and of steps that were not reduced where every step is recorded.
  std::uint64_t lost() const {
    return reduced_.lost() + (reduced_.every_one() ? unreduced_.lost() : 0);
  }
  std::uint64_t workers_expected() const { return workers_expected_; }
  std::uint64_t workers_seen() const { return workers_seen_; }  // at one step

 private:
  ModelKey model_;
  base::StepSpan reduced_;    // by the count of reductions
  base::StepSpan unreduced_;  // by their own
  std::uint64_t logged_ = 0;
  std::uint64_t compared_ = 0;
  std::uint64_t workers_expected_ = 0;
  std::uint64_t workers_seen_ = 0;
};

struct Coverage {
  std::uint64_t steps_logged = 0;  // training_steps()
  // Of the model or data-parallel group that has most of them, over all segments: base::StepSpan's,
  // and those of two workers or more with no packet under way.
  std::uint64_t steps_lost = 0;
  std::uint64_t steps_compared = 0;
  std::uint64_t workers_expected = 0;
  std::uint64_t workers_seen = 0;  // at one step
  CheckCounts checks{};            // over all models and segments
  // Of the model that was watched the least, in its last segment and those that detectors went on
  // from: compared steps, and those that a lasting difference needs to be established
  // (detect::least_steps); 0 without two workers.
  std::uint64_t statistics_steps = 0;
  std::uint64_t statistics_need = 0;
  std::uint64_t statistics_workers = 0;
  std::uint32_t statistics_since = 0;  // the segment in which its detectors began; 0: not known

  bool statistics_judged() const { return statistics_steps >= statistics_need; }

  // How many checks were possible.
  std::uint64_t checks_made() const;
};

// Steps in the order of RunLog::steps(), cut where the model or the segment changes.
std::vector<std::span<const StepRecord>> cut(std::span<const StepRecord> steps);
std::vector<ModelSteps> models_of(std::span<const StepRecord> steps);

// `models` and `continuations`: ascending by model.
Coverage cover(std::span<const ModelSteps> models, std::span<const Continuation> continuations,
               const CheckCounts& checks);

// "statistics need 26 steps with 2 workers, and saw 20"; of detectors that began anew in a later
// segment since which; empty where they saw enough.
std::string statistics_text(const Coverage& coverage);

// A warning or worse is inconsistent. The evidence is insufficient without five compared steps,
// where no check was made, and where the record is known to lack something: steps, or what
// `complete` says.
Verdict verdict(std::span<const Finding> findings, const Coverage& coverage, bool complete);

}  // namespace presum::judge
