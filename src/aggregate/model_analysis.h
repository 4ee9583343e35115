// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "detect/detector.h"
#include "detect/slow_workers.h"
#include "diagnose/diagnoser.h"
#include "diagnose/rank_ended.h"
#include "diagnose/resume.h"
#include "judge/coverage.h"
#include "metrics/step_metrics.h"
#include "packet/packet.h"
#include "presum/finding.h"
#include "presum/stall.h"

namespace presum::aggregate {

// What is known of one model over its steps: its noise scale, detectors and findings. Not
// synchronised.
class ModelAnalysis {
 public:
  explicit ModelAnalysis(const ModelKey& model);

  void resumes(diagnose::Left left);
  void hello(const packet::Hello& hello);
  void moment(const packet::MomentOf& moment);
  void farewell(const packet::Note& note);
  void beats() { diagnoser_.beats(); }
  void stalled(const Stall& stall);
  void ended(const std::optional<diagnose::RankEnd>& end);
  // The step's record; `input` gets the model's noise scale. REQUIRES: ascending steps.
  StepRecord measure(metrics::StepInput input);
  void judge(const StepRecord& record);

  // As of the last call of the above: signals are merged once for all that ask.
  const std::vector<diagnose::Diagnoser::Numbered>& findings();
  std::vector<CheckRecord> checks() const { return diagnoser_.checks(); }
  const judge::ModelSteps& steps() const { return steps_; }
  // Something came in since `take_changed` was last called.
  bool take_changed();

  std::string save() const { return detector_.save(); }
  void restore(std::string_view state) { static_cast<void>(detector_.restore(state)); }

 private:
  void changed();

  metrics::NoiseScale noise_;
  detect::Detector detector_;
  detect::SlowWorkers slow_;
  diagnose::Diagnoser diagnoser_;
  judge::ModelSteps steps_;
  std::vector<diagnose::Diagnoser::Numbered> findings_;
  bool findings_stale_ = false;
  bool changed_ = true;
};

}  // namespace presum::aggregate
