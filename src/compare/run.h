// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "presum/run_log.h"
#include "presum/status.h"

namespace presum::compare {

using ModelPart = std::pair<std::uint32_t, std::uint32_t>;  // model_index and dp_group

// A run's records besides its steps. `log` must outlive this object.
struct Run {
  const RunLog& log;
  std::vector<Fact> facts = {};
  std::vector<SegmentInfo> segments = {};
  std::vector<GroupInfo> groups = {};
  std::vector<FinalStateRecord> final_states = {};
  // Models that have steps, with their segments.
  std::map<ModelPart, std::vector<std::uint32_t>> models = {};

  // The name of a segment's salt; empty if unknown.
  std::string salt(std::uint32_t segment) const;
  // The distance between a segment's recorded steps; 0 if unknown.
  std::uint64_t every(std::uint32_t segment, std::uint32_t model_index) const;
  std::vector<Fact> facts_of(std::uint32_t segment, std::uint32_t model_index) const;
  std::vector<FinalStateRecord> final_states_of(std::uint32_t segment, ModelPart key) const;
};

Result<Run> read_run(const RunLog& log);

}  // namespace presum::compare
