// SPDX-License-Identifier: Apache-2.0
// optimizer-mismatch, mode-mismatch, environment-mismatch: values that every worker must share.
#pragma once

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "checks/engine/step_context.h"

namespace presum::checks {

// Evidence of what must match and does not.
struct Differing {
  std::vector<std::string> differ;                          // names
  std::vector<std::pair<std::string, std::string>> values;  // by rank, as "0-1,3: 0.001; 2: 0.01"
  static constexpr std::tuple kFields{field("differ", &Differing::differ),
                                      field("values", &Differing::values)};
};

// The fingerprints of one check that must match and do not.
struct Mismatch {
  Blame blame;
  Differing seen;
  std::size_t more = 0;  // that were left out
  bool looked = false;   // two workers had a value of some kind
};

// Compares every kind of the check that must match and that `counts`
// accepts.
Mismatch compare_kinds(
    const StepContext& context, Check check,
    bool (*counts)(FingerprintKind) = [](FingerprintKind) { return true; });
// "a", "a and b", "a, b and c"; "a, b and 3 more" where `more` were left out.
std::string listed(const std::vector<std::string>& names, std::size_t more = 0);

}  // namespace presum::checks
