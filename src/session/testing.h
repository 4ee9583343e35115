// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <vector>

#include "presum/run_log.h"

namespace presum::testing {

// Complete steps of the only model.
inline std::vector<StepRecord> steps_in(const std::filesystem::path& run) {
  const auto log = RunLog::open(run);
  std::vector<StepRecord> steps;
  if (!log) return steps;
  auto cursor = log->cursor({.segment = 1});
  for (auto step = cursor->next(); step && *step; step = cursor->next()) steps.push_back(**step);
  return steps;
}

}  // namespace presum::testing
