// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "aggregate/left.h"
#include "detect/detector.h"
#include "diagnose/resume.h"
#include "presum/run_log.h"
#include "presum/step_record.h"
#include "runlog/writer.h"

namespace presum::aggregate {

// How a model begins in a segment that continues a run, once its first step is there: with
// parameters that an earlier segment saved, or had when it ended, or with none of these. Only where
// it goes on from such parameters, `detector` becomes what those of that training were.
Continuation continuation_of(const LeftModel& left, const diagnose::BeganWith& began,
                             const StepRecord& first,
                             const std::optional<runlog::SavedDetector>& saved,
                             detect::Detector& detector);

}  // namespace presum::aggregate
