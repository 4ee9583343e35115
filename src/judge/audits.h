// SPDX-License-Identifier: Apache-2.0
// Summaries of the audits of a run's reduction (docs/audit.md). Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "presum/run_log.h"

namespace presum::judge {

// The audits of one model and segment. Formats, orders and divisions are names as in
// presum/audit.h; if there are several, each with its number of audits: "ring (18), unknown (2)".
struct AuditSummary {
  ModelKey model;
  std::uint64_t first_step = 0;
  std::uint64_t last_step = 0;
  std::uint64_t steps = 0;     // steps with audits
  std::uint64_t audits = 0;    // over all steps and ranks
  std::uint64_t elements = 0;  // over all audits, as are the next two
  std::uint64_t differing = 0;
  std::uint64_t wrong = 0;
  double relative_l2 = 0;              // the largest; NaN if none is known
  std::optional<UlpPercentiles> ulps;  // the largest of each
  std::string gradient;
  std::string accumulation;
  std::string order;
  std::string division;
  std::uint64_t repeated = 0;
  std::uint64_t repeats_differing = 0;  // of those that were repeated
};

// One entry per model and segment. REQUIRES: in the order of RunLog::audits().
std::vector<AuditSummary> summarize(std::span<const AuditedStep> audits);

}  // namespace presum::judge
