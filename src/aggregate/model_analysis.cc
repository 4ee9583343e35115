// SPDX-License-Identifier: Apache-2.0
#include "aggregate/model_analysis.h"

#include <utility>

#include "aggregate/continuation.h"
#include "checks/job/prior_run.h"

namespace presum::aggregate {

ModelAnalysis::ModelAnalysis(const ModelKey& model)
    : detector_(detect::Options{}), slow_(detect::Options{}), diagnoser_(model), steps_(model) {}

void ModelAnalysis::resumes(PriorModel prior, std::optional<runlog::SavedDetector> saved) {
  diagnoser_.resumes(std::exchange(prior.prior, {}));
  prior_ = std::move(prior);
  saved_ = std::move(saved);
}

void ModelAnalysis::begin(const StepRecord& first) {
  continuation_ = continuation_of(*prior_, diagnoser_.began_with(), first, saved_, detector_);
  prior_.reset();
  saved_.reset();
}

std::optional<std::string> ModelAnalysis::save() const {
  return prior_ ? std::nullopt : std::optional(detector_.save());
}

checks::Diagnoser& ModelAnalysis::tell() {
  changed_ = findings_stale_ = true;
  return diagnoser_;
}

StepRecord ModelAnalysis::measure(metrics::StepInput input) {
  input.noise_scale = &noise_;
  return metrics::compute(input);
}

void ModelAnalysis::judge(const StepRecord& record) {
  if (prior_) begin(record);
  tell().update(record, detector_.judge(record), slow_.judge(record));
  steps_.add(record);
}

const std::vector<checks::Diagnoser::Numbered>& ModelAnalysis::findings() {
  if (std::exchange(findings_stale_, false)) findings_ = diagnoser_.findings();
  return findings_;
}

bool ModelAnalysis::take_changed() { return std::exchange(changed_, false); }

}  // namespace presum::aggregate
