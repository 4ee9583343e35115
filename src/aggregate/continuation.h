// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "aggregate/prior_run.h"
#include "checks/job/prior_run.h"
#include "detect/detector.h"
#include "presum/run_log.h"
#include "presum/step_record.h"
#include "runlog/writer.h"

namespace presum::aggregate {

// Determines how a model started in a segment that continues a run, from its first step: with
// parameters that an earlier segment saved or ended with, or with others. If it continues from such
// parameters, restores `detector` to the state that the detectors of that training had.
Continuation continuation_of(const PriorModel& prior, const checks::BeganWith& began,
                             const StepRecord& first,
                             const std::optional<runlog::SavedDetector>& saved,
                             detect::Detector& detector);

// How a segment continues its run, and which notices about it were returned. Not synchronized.
class ContinuedRun {
 public:
  // `segment`: segment 1 continues nothing. `steps`: steps of the run so far; empty: unknown.
  ContinuedRun(std::uint32_t segment, std::optional<std::uint64_t> steps);

  void add(const Continuation& continuation);
  // Sorted by model.
  std::span<const Continuation> continuations() const { return continuations_; }
  // See Aggregator::take_notices.
  std::vector<std::string> take_notices();

 private:
  std::string begins_;  // may be empty
  std::vector<Continuation> continuations_;
  std::set<std::string> told_;
};

}  // namespace presum::aggregate
