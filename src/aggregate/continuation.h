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

// How a model begins in a segment that continues a run, once its first step is there: with
// parameters that an earlier segment saved, or had when it ended, or with none of these. Only where
// it goes on from such parameters, `detector` becomes what those of that training were.
Continuation continuation_of(const PriorModel& prior, const checks::BeganWith& began,
                             const StepRecord& first,
                             const std::optional<runlog::SavedDetector>& saved,
                             detect::Detector& detector);

// How a segment continues its run, and what of that was told. Not synchronized.
class ContinuedRun {
 public:
  // `segment`: 1 continues nothing. `steps`: of the run so far; none: not known.
  ContinuedRun(std::uint32_t segment, std::optional<std::uint64_t> steps);

  void add(const Continuation& continuation);
  // By model.
  std::span<const Continuation> continuations() const { return continuations_; }
  // See Aggregator::take_notices.
  std::vector<std::string> take_notices();

 private:
  std::string begins_;  // may be empty
  std::vector<Continuation> continuations_;
  std::set<std::string> told_;
};

}  // namespace presum::aggregate
