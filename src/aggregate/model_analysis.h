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

// The state of one model over its steps: its noise scale, detectors and findings. Not synchronized.
class ModelAnalysis {
 public:
  explicit ModelAnalysis(const ModelKey& model);

  // Sets what the run's earlier segments left. Call it before anything else.
  void resumes(PriorModel prior, std::optional<runlog::SavedDetector> saved);
  // Gives access for reports other than steps. These may change the findings.
  checks::Diagnoser& tell();
  void beats() { diagnoser_.beats(); }
  void group(std::size_t ranks) { diagnoser_.group(ranks); }
  // Returns the step's record, and sets the model's noise scale in `input`. REQUIRES: ascending
  // steps.
  StepRecord measure(metrics::StepInput input);
  void judge(const StepRecord& record);

  // The findings as of the last call of the functions above. Signals are merged once for all
  // callers.
  const std::vector<checks::Diagnoser::Numbered>& findings();
  std::vector<CheckRecord> checks() const { return diagnoser_.checks(); }
  const judge::ModelSteps& steps() const { return steps_; }
  // Returns whether there was new input since the last call.
  bool take_changed();

  // Set in a later segment, once the first step has been judged.
  const std::optional<Continuation>& continuation() const { return continuation_; }
  // Empty while it is unknown whether the detectors continue from the saved ones.
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
