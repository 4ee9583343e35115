// SPDX-License-Identifier: Apache-2.0
// What the findings and checks of a run say about it as a whole. Plain values.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "presum/finding.h"
#include "presum/run_log.h"
#include "presum/status.h"
#include "report/audits.h"
#include "report/json.h"

namespace presum::report {

struct Coverage {
  std::uint64_t steps_logged = 0;    // in the run log
  std::uint64_t steps_lost = 0;      // base::StepSpan's, over all models and segments
  std::uint64_t steps_compared = 0;  // in the log, of two workers or more, no packet under way
  std::uint64_t workers_expected = 0;
  std::uint64_t workers_seen = 0;         // at one step
  std::array<std::uint64_t, 4> checks{};  // by state, over all models and segments
};

struct Judgement {
  Verdict verdict = Verdict::kInsufficientEvidence;
  std::string reason;  // why the evidence is insufficient; else empty
  Coverage coverage;
  std::vector<SegmentInfo> segments;
  std::vector<Finding> findings;  // worst first
  std::vector<RunLog::Check> checks;
  std::vector<AuditSummary> audits;
};

// Of a run or, if named, of one of its segments. The evidence is insufficient without a step, with
// one worker, where no check was made, and where the record is known to lack steps or workers,
// unless there are findings all the same. REQUIRES: steps == log.steps(). Errors: those of reading
// the run.
Result<Judgement> judge(const RunLog& log, std::span<const StepRecord> steps,
                        std::optional<std::uint32_t> segment = {});

// What packets could not be used: "135 packets arrived late, 2 were damaged". Empty without any.
std::string packets_text(const PacketCounts& packets);

// Lists of the document of `presum findings --format json`. NaN and Inf are null.
Json findings_json(std::span<const Finding> findings);
Json checks_json(std::span<const RunLog::Check> checks);
Json segments_json(std::span<const SegmentInfo> segments);
// The document itself.
Json judgement_json(const Judgement& judgement);

}  // namespace presum::report
