// SPDX-License-Identifier: Apache-2.0
// Findings that a team knows of and ignores until a date: a JSON file beside the program,
//   {"ignore": [{"check": "token-weight", "reason": "mean of means by design",
//                "expires": "2027-03-31"},
//               {"check": "slow-rank", "ranks": [3], "reason": "...", "expires": "..."}]}
// An entry applies to findings of its check, with the effects that they explain; with `ranks`, only
// if all ranks of a finding and of its evidence are among them. It expires at the end of its day,
// in UTC.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "presum/finding.h"
#include "presum/status.h"

namespace presum::cli {

struct BaselineEntry {
  std::string check;
  std::optional<std::vector<std::uint32_t>> ranks;
  std::string reason;
  std::string expires;  // "2027-03-31"
};

// Errors, each with the file and the entry: kIo, if the file cannot be read; kInvalidArgument,
// if it is not of this form, a check or key is unknown, a reason or date is missing, or an entry
// has expired.
Result<std::vector<BaselineEntry>> read_baseline(const std::string& file);

bool applies(const BaselineEntry& entry, const Finding& finding);
// The first entry that applies; null if none does.
const BaselineEntry* entry_for(std::span<const BaselineEntry> baseline, const Finding& finding);

}  // namespace presum::cli
