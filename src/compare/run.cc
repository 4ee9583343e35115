// SPDX-License-Identifier: Apache-2.0
#include "compare/run.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "base/try.h"

namespace presum::compare {
std::string Run::salt(std::uint32_t segment) const {
  const auto found = std::ranges::find(segments, segment, &SegmentInfo::segment);
  return found == segments.end() ? "" : found->salt;
}

std::uint64_t Run::every(std::uint32_t segment, std::uint32_t model_index) const {
  const auto found = std::ranges::find_if(facts, [&](const Fact& f) {
    return f.segment == segment && f.model_index == model_index && f.key == "every";
  });
  return found == facts.end() ? 0 : std::strtoull(found->value.c_str(), nullptr, 10);
}

std::vector<Fact> Run::facts_of(std::uint32_t segment, std::uint32_t model_index) const {
  std::vector<Fact> out;
  std::ranges::copy_if(facts, std::back_inserter(out), [&](const Fact& f) {
    return f.segment == segment && f.model_index == model_index;
  });
  return out;
}

std::vector<FinalStateRecord> Run::final_states_of(std::uint32_t segment, ModelPart key) const {
  std::vector<FinalStateRecord> out;
  std::ranges::copy_if(final_states, std::back_inserter(out), [&](const FinalStateRecord& f) {
    return f.model.segment == segment && ModelPart{f.model.model_index, f.model.dp_group} == key;
  });
  return out;
}

Result<Run> read_run(const RunLog& log) {
  Run run{.log = log};
  PRESUM_ASSIGN(run.facts, log.facts());
  PRESUM_ASSIGN(run.segments, log.segments());
  PRESUM_ASSIGN(run.groups, log.groups());
  PRESUM_ASSIGN(run.final_states, log.final_states());
  PRESUM_ASSIGN(const auto steps, log.steps());
  for (const StepRecord& s : steps) {
    auto& segments = run.models[{s.model.model_index, s.model.dp_group}];
    if (segments.empty() || segments.back() != s.model.segment) segments.push_back(s.model.segment);
  }
  return run;
}

}  // namespace presum::compare
