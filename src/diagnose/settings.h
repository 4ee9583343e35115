// SPDX-License-Identifier: Apache-2.0
// optimizer-mismatch, mode-mismatch, environment-mismatch: values that every worker must share.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "diagnose/step_context.h"

namespace presum::diagnose {

// The fingerprints of one check that must match and do not.
struct Mismatch {
  Blame blame;
  std::vector<std::string> names;  // of the kinds
  std::size_t more = 0;            // names that were left out
  Evidence evidence;               // the values by rank
  bool looked = false;             // two workers had a value of some kind
};

// Compares every kind that fingerprint_kinds() lists as must-match for the check and that `counts`
// accepts.
Mismatch compare_kinds(const StepContext& context, Check check,
                       const std::function<bool(FingerprintKind)>& counts);
// "a", "a and b", "a, b and c", each name once; "a, b and 3 more" where `more` were left out.
std::string listed(const std::vector<std::string>& names, std::size_t more = 0);

class Settings {
 public:
  void update(const StepContext& context, SignalLog& log);

 private:
  struct Words {
    const char* minority;  // a title for those that differ from the rest
    const char* everyone;  // where there is no minority
  };
  void compare(const StepContext& context, Check check, const Words& words, SignalLog& log);
  void name_optimizer_settings(const StepContext& context, Mismatch& found);
  static void compare_norm_batches(const StepContext& context, SignalLog& log);
  void look_inside(const StepContext& context, SignalLog& log);
  void compare_facts(const StepContext& context);
  void follow_facts(const StepContext& context);

  std::uint64_t revision_ = 0;    // of the facts that were compared
  std::uint64_t pause_ = 0;       // records until they are compared again at the earliest
  std::vector<Signal> standing_;  // facts that do not match
  bool facts_compared_ = false;
  bool tells_dtypes_ = false;         // some worker does
  bool seen_inside_ = false;          // two workers' precision inside a forward pass
  std::uint64_t named_revision_ = 0;  // of the facts that `named_` is of
  Mismatch named_;                    // settings of optimisers that differ
};

}  // namespace presum::diagnose
