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

// A run's records besides its steps. Lifetime: the log outlives it.
struct Run {
  const RunLog& log;
  std::vector<Fact> facts = {};
  std::vector<SegmentInfo> segments = {};
  std::vector<GroupInfo> groups = {};
  std::vector<FinalStateRecord> final_states = {};
  std::map<ModelPart, std::vector<std::uint32_t>> models = {};  // those with steps; their segments

  // The name of a segment's salt; empty where it is not known.
  std::string salt(std::uint32_t segment) const;
  // The distance of a segment's recorded steps; 0 where it does not say so.
  std::uint64_t every(std::uint32_t segment, std::uint32_t model_index) const;
  std::vector<Fact> facts_of(std::uint32_t segment, std::uint32_t model_index) const;
  std::vector<FinalStateRecord> final_states_of(std::uint32_t segment, ModelPart key) const;
};

Result<Run> read_run(const RunLog& log);

}  // namespace presum::compare
