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

// The point before a step of an earlier segment, from which a later segment may continue.
struct PriorPlace {
  std::uint32_t segment = 0;
  std::uint64_t step = 0;
  std::uint64_t steps = 0;    // recorded steps of the training up to this point
  std::uint64_t watched = 0;  // how many of these the detectors have seen
};

// What the earlier segments of a run left for one model.
struct PriorModel {
  checks::PriorRun prior;
  std::vector<FinalStateRecord> ended;  // of the last segment whose ranks reported them
  std::uint64_t end = 0;                // last step of that segment + 1
  std::vector<PriorPlace> places;       // for each entry of `prior.saved`, and for `end`
  // By segment: the segment in which the detectors that it continued with started.
  std::map<std::uint32_t, std::uint32_t> lines;

  std::uint32_t line_of(std::uint32_t segment) const {
    const auto at = lines.find(segment);
    return at == lines.end() ? segment : at->second;
  }
};

struct PriorRuns {
  std::map<std::pair<std::uint32_t, std::uint32_t>, PriorModel> models;  // model_index, dp_group
  std::optional<std::uint64_t> steps;  // judge::training_steps; empty: unknown
};

// Reads what the earlier segments of a run left for the next one. Empty if there is no run. Keeps
// the latest snapshots, whole ones only, up to 64 MiB; reads the last 4,000 steps. Errors: those of
// RunLog.
Result<PriorRuns> read_prior_runs(const std::filesystem::path& run);

}  // namespace presum::aggregate
