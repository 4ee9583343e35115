// SPDX-License-Identifier: Apache-2.0
// Findings and checks as text for people. All text from a run is made printable.
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

// ", segment 2, model 1, data-parallel group 3"; omits whatever is the first.
std::string model_text(const ModelKey& model);

// Where a finding applies: "ranks 2,5 on node[0-1]", and the segment, model and data-parallel group
// if there are others.
std::string location_text(const Finding& finding);

// A finding as a paragraph. `run` is the RUN of the commands that it names.
std::string finding_text(const Finding& finding, const std::string& run);

// Checks by state, with one line per state and reason. If a check has the state only in some models
// and segments, the line says in how many.
std::string checks_by_state(std::span<const RunLog::Check> checks);

// Results of the audits of the reduction, one paragraph per model and segment; "" without audits.
std::string audits_text(std::span<const judge::AuditSummary> audits);

// "inconsistent", "insufficient evidence: one rank: there is nothing to compare".
std::string verdict_text(const judge::Judgment& judgment);

// "40 steps, 8 of 8 ranks".
std::string coverage_text(const judge::Coverage& coverage);

// "", or that segments were not closed properly, and how many steps the judgment covers.
std::string unfinished_text(const judge::Judgment& judgment);

// What a judgment could not rest on, each part after "; ": too few steps for statistics, segments
// that were not closed or whose record is incomplete. Empty if nothing is missing.
std::string shortcomings_text(const judge::Judgment& judgment);

// One line per segment whose record is incomplete, and one for packets that could not be used.
std::string collection_text(std::span<const SegmentInfo> segments);
// One line per segment that a preflight ended, with its exit code.
std::string preflights_text(std::span<const SegmentInfo> segments);

}  // namespace presum::cli
