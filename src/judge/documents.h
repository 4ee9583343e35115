// SPDX-License-Identifier: Apache-2.0
// A judgment as JSON: the document of `presum findings --format json` and its lists. NaN and Inf
// are null. Pure; any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <span>

#include "judge/judgment.h"

namespace presum::judge {

using Json = nlohmann::ordered_json;

Json findings_json(std::span<const Finding> findings);
Json checks_json(std::span<const RunLog::Check> checks);
Json continuations_json(std::span<const Continuation> continuations);
Json segments_json(std::span<const SegmentInfo> segments);
Json audits_json(std::span<const AuditSummary> audits);
Json judgment_json(const Judgment& judgment);

}  // namespace presum::judge
