// SPDX-License-Identifier: Apache-2.0
// What audits of a run's reduction came to (docs/audit.md). Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "presum/run_log.h"

namespace presum::judge {

// Of one model and segment. Formats, orders and divisions are names as in presum/audit.h, with
// their number of audits where there are several: "ring (18), unknown (2)".
struct AuditSummary {
  ModelKey model;
  std::uint64_t first_step = 0;
  std::uint64_t last_step = 0;
  std::uint64_t steps = 0;     // with audits
  std::uint64_t audits = 0;    // of all steps and workers
  std::uint64_t elements = 0;  // of all audits, and so are the next two
  std::uint64_t differing = 0;
  std::uint64_t wrong = 0;
  double relative_l2 = 0;              // the largest; NaN where none is known
  std::optional<UlpPercentiles> ulps;  // the largest of each
  std::string gradient;
  std::string accumulation;
  std::string order;
  std::string division;
  std::uint64_t repeated = 0;
  std::uint64_t repeats_differing = 0;  // of those that were repeated
};

// One entry a model and segment. REQUIRES: in the order of RunLog::audits().
std::vector<AuditSummary> summarize(std::span<const AuditedStep> audits);

}  // namespace presum::judge
