// SPDX-License-Identifier: Apache-2.0
// Findings and checks as text for people. Whatever a run holds is made printable.
#pragma once

#include <span>
#include <string>

#include "judge/judgment.h"
#include "presum/finding.h"
#include "presum/run_log.h"

namespace presum::cli {

// "1 step", "2 steps".
std::string count(std::uint64_t value, const char* noun);

// "never", "once", "3 times".
std::string times(std::uint64_t value);

// ", segment 2, model 1, data-parallel group 3": what is not the first.
std::string model_text(const ModelKey& model);

// Where a finding holds: "ranks 2,5 on node[0-1]", and the segment, model and data-parallel group
// where they are not the only ones.
std::string location_text(const Finding& finding);

// A finding as a paragraph.
std::string finding_text(const Finding& finding);

// Checks by state, a line for each state and reason; a check that has the state in some of the
// models and segments only says in how many.
std::string checks_by_state(std::span<const RunLog::Check> checks);

// What audits of the reduction came to, a paragraph for each model and segment; "" without any.
std::string audits_text(std::span<const judge::AuditSummary> audits);

// "inconsistent", "insufficient evidence: one worker: there is nothing to compare".
std::string verdict_text(const judge::Judgment& judgment);

// "40 steps, 8 of 8 workers".
std::string coverage_text(const judge::Coverage& coverage);

// "", or that segments were not closed in order, and on how many steps the run was judged.
std::string unfinished_text(const judge::Judgment& judgment);

// A line for each segment whose record is incomplete, and for packets that could not be used.
std::string collection_text(std::span<const SegmentInfo> segments);
// A line for each segment that a preflight ended, with its exit code.
std::string preflights_text(std::span<const SegmentInfo> segments);

}  // namespace presum::cli
