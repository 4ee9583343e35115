// SPDX-License-Identifier: Apache-2.0
// What the findings and checks of a run say about it as a whole. Plain values.
#pragma once

#include <cstdint>
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
  std::string reason;  // why the evidence is insufficient; else empty
  Coverage coverage;
  std::vector<SegmentInfo> segments;
  std::vector<Continuation> continuations;
  std::vector<Finding> findings;  // worst first
  std::vector<RunLog::Check> checks;
  std::vector<AuditSummary> audits;
};

// Of a run or, if named, of one of its segments. The evidence is insufficient without a step, with
// one worker, where no check was made, and where the record is known to lack steps or workers,
// unless there are findings all the same. REQUIRES: steps == log.steps(). Errors: those of reading
// the run.
Result<Judgment> judge(const RunLog& log, std::span<const StepRecord> steps,
                       std::optional<std::uint32_t> segment = {});

// One cause in several models (or shards) of a segment is one finding: of the same check, severity
// and ranks, at about the same time. The others' models are in `elsewhere`. Keeps the order.
std::vector<Finding> one_per_cause(std::vector<Finding> findings);

// What packets could not be used: "135 packets arrived late, 2 packets damaged". Empty without any.
std::string packets_text(const PacketCounts& packets);

}  // namespace presum::judge
