// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "checks/job/prior_run.h"
#include "presum/run_log.h"
#include "presum/status.h"

namespace presum::aggregate {

// Before a step of an earlier segment, from where a later one may go on.
struct PriorPlace {
  std::uint32_t segment = 0;
  std::uint64_t step = 0;
  std::uint64_t steps = 0;    // recorded ones of its training, up to there
  std::uint64_t watched = 0;  // of these, since its detectors began
};

// What the segments that are in a run's folder left of one model.
struct PriorModel {
  checks::PriorRun prior;
  std::vector<FinalStateRecord> ended;  // of the last segment whose workers told them
  std::uint64_t end = 0;                // the step after the last of that one
  std::vector<PriorPlace> places;       // of `prior.saved`, and of `end`
  // By segment: in which one the detectors began that it went on with.
  std::map<std::uint32_t, std::uint32_t> lines;

  std::uint32_t line_of(std::uint32_t segment) const {
    const auto at = lines.find(segment);
    return at == lines.end() ? segment : at->second;
  }
};

struct PriorRuns {
  std::map<std::pair<std::uint32_t, std::uint32_t>, PriorModel> models;  // model_index, dp_group
  std::optional<std::uint64_t> steps;  // judge::training_steps; none: not known
};

// What the segments that are in a run's folder left, for the one that is about to begin. Empty
// where there is no run. Keeps what was saved last, at most 64 MiB of it and whole snapshots only;
// reads the last 4,000 steps.
// Errors: those of RunLog.
Result<PriorRuns> read_prior_runs(const std::filesystem::path& run);

}  // namespace presum::aggregate
