// SPDX-License-Identifier: Apache-2.0
// optimizer-mismatch, mode-mismatch, environment-mismatch: values that every worker must share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checks/engine/step_context.h"

namespace presum::checks {

// The fingerprints of one check that must match and do not.
struct Mismatch {
  Blame blame;
  std::vector<std::string> names;  // of the kinds
  std::size_t more = 0;            // names that were left out
  Values evidence;               // the values by rank
  bool looked = false;             // two workers had a value of some kind
};

// Compares every kind that fingerprint_kinds() lists as must-match for the check and that `counts`
// accepts.
Mismatch compare_kinds(
    const StepContext& context, Check check,
    bool (*counts)(FingerprintKind) = [](FingerprintKind) { return true; });
// "a", "a and b", "a, b and c", each name once; "a, b and 3 more" where `more` were left out.
std::string listed(const std::vector<std::string>& names, std::size_t more = 0);

}  // namespace presum::checks
