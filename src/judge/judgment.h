// SPDX-License-Identifier: Apache-2.0
// The verdict on a run as a whole, from its findings and checks. Plain values.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "judge/audits.h"
#include "judge/coverage.h"
#include "presum/finding.h"
#include "presum/run_log.h"
#include "presum/status.h"

namespace presum::judge {

struct Judgment {
  Verdict verdict = Verdict::kInsufficientEvidence;
  std::string reason;  // why the evidence is insufficient; empty otherwise
  Coverage coverage;
  std::vector<SegmentInfo> segments;
  std::vector<Continuation> continuations;
  std::vector<Finding> findings;  // worst first
  std::vector<RunLog::Check> checks;
  std::vector<AuditSummary> audits;
};

// Judges a run or, if given, one of its segments. The evidence is insufficient without a step, with
// one rank, if no check was possible, or if the record is known to lack steps or ranks, unless
// there are findings. REQUIRES: steps == log.steps(). Errors: those of reading the run.
Result<Judgment> judge(const RunLog& log, std::span<const StepRecord> steps,
                       std::optional<std::uint32_t> segment = {});

// Takes out the findings for which `ignored` holds and returns them, in their order. The verdict
// and its reason are then those of the others.
std::vector<Finding> set_aside(Judgment& judgment,
                               const std::function<bool(const Finding&)>& ignored);

// Merges findings with one cause in several models (or shards) of a segment: those with the same
// check, severity and ranks, at about the same time. The other models are in `elsewhere`. Keeps the
// order.
std::vector<Finding> one_per_cause(std::vector<Finding> findings);

// The packets that could not be used: "135 packets arrived late, 2 packets damaged". Empty if there
// are none.
std::string packets_text(const PacketCounts& packets);

}  // namespace presum::judge
