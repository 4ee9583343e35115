// SPDX-License-Identifier: Apache-2.0
// optimizer-mismatch, mode-mismatch, environment-mismatch: values that every worker must share.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "diagnose/book.h"
#include "diagnose/look.h"

namespace presum::diagnose {

// The fingerprints of one check that must match and do not.
struct Mismatch {
  Blame blame;
  std::vector<std::string> names;  // of the kinds
  Evidence evidence;               // the values by rank
  bool looked = false;             // two workers had a value of some kind
};

// Compares every kind that fingerprint_kinds() lists as must-match for the check and that `counts`
// accepts.
Mismatch compare_kinds(const StepRecord& record, Check check,
                       const std::function<bool(FingerprintKind)>& counts);
// "a", "a and b", "a, b and c".
std::string listed(const std::vector<std::string>& names);

class Settings {
 public:
  void update(const Look& look, Book& book);

 private:
  static void compare(const Look& look, Check check, const char* title, Book& book);
  void compare_facts(const Look& look);

  std::uint64_t revision_ = 0;    // of the facts that were compared
  std::vector<Signal> standing_;  // facts that do not match
  bool facts_compared_ = false;
};

}  // namespace presum::diagnose
