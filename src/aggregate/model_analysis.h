// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "aggregate/prior_run.h"
#include "checks/engine/diagnoser.h"
#include "detect/detector.h"
#include "detect/slow_workers.h"
#include "judge/coverage.h"
#include "metrics/step_metrics.h"
#include "presum/finding.h"
#include "presum/run_log.h"
#include "runlog/writer.h"

namespace presum::aggregate {

// What is known of one model over its steps: its noise scale, detectors and findings. Not
// synchronized.
class ModelAnalysis {
 public:
  explicit ModelAnalysis(const ModelKey& model);

  // The run has earlier segments, and these are theirs; before anything else.
  void resumes(PriorModel prior, std::optional<runlog::SavedDetector> saved);
  // To be told what is no step; its findings may change by it.
  checks::Diagnoser& tell();
  void beats() { diagnoser_.beats(); }
  void group(std::size_t ranks) { diagnoser_.group(ranks); }
  // The step's record; `input` gets the model's noise scale. REQUIRES: ascending steps.
  StepRecord measure(metrics::StepInput input);
  void judge(const StepRecord& record);

  // As of the last call of the above: signals are merged once for all that ask.
  const std::vector<checks::Diagnoser::Numbered>& findings();
  std::vector<CheckRecord> checks() const { return diagnoser_.checks(); }
  const judge::ModelSteps& steps() const { return steps_; }
  // Something came in since `take_changed` was last called.
  bool take_changed();

  // In a later segment, once the first step was judged.
  const std::optional<Continuation>& continuation() const { return continuation_; }
  // None where it is not known yet whether the detectors go on from those that were saved.
  std::optional<std::string> save() const;

 private:
  void begin(const StepRecord& first);

  metrics::NoiseScale noise_;
  detect::Detector detector_;
  detect::SlowWorkers slow_;
  checks::Diagnoser diagnoser_;
  judge::ModelSteps steps_;
  std::optional<PriorModel> prior_;  // until the first step
  std::optional<runlog::SavedDetector> saved_;
  std::optional<Continuation> continuation_;
  std::vector<checks::Diagnoser::Numbered> findings_;
  bool findings_stale_ = false;
  bool changed_ = true;
};

}  // namespace presum::aggregate
