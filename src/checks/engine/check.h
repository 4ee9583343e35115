// SPDX-License-Identifier: Apache-2.0
// The declaration of a check. `presum explain`, the page, the order of causes and docs/findings.md
// are built from it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "presum/finding.h"
#include "presum/fingerprint.h"

namespace presum::checks {

class Rule;
struct CheckInfo;
struct Signal;

// A check is identified by the address of its declaration. CMake lists the declarations
// (declared.h), so a new check needs only one file.
using Check = const CheckInfo*;

struct CheckInfo {
  // The kind of alarms that are its only basis.
  enum class RestsOn : std::uint8_t { kNothing, kStatistics, kTimes };

  std::string_view id;
  Severity severity;
  std::string_view compares;     // a noun phrase, one line
  std::string_view fires;        // when, for docs/findings.md
  std::string_view consequence;  // if it is not fixed, one sentence
  std::string_view cannot_see;
  std::string_view mistake;  // example code, lines of Python
  std::string_view fix;
  std::string_view resembles = {};  // a public issue; may be empty
  int precedence;                   // the check with the lowest precedence heads a finding
  std::span<const Check> explains = {};
  std::span<const FingerprintKind> fingerprints = {};  // the kinds that it reads
  RestsOn rests_on = RestsOn::kNothing;
  bool compares_ranks = false;  // not evaluated for a single rank
  bool of_time = false;         // does not affect the trained numbers
  bool of_a_step = false;       // `presum blame` can list the samples and layers behind one step
  // How its signals merge: docs/findings.md, "One cause, one finding".
  bool sets_apart = false;     // its ranks' gradients come to differ from the rest
  bool left_alike = false;     // appears among the remaining ranks when others are set apart
  bool outvotes = false;       // its ranks agree, so the others look turned away
  bool may_be_design = false;  // normal for ranks that share data: information explains it too
  bool info_explains = true;   // as information, it explains other information
  bool names_cause = false;    // as information, it explains graver findings too
  bool explains_single_ranks = true;  // if all ranks show it, it also explains single ranks
  bool joins_itself = true;           // two of its signals may have one cause
  bool dates_finding = true;  // a finding that absorbs it starts no later; never for statistics
  bool dates_itself = false;  // its sentence contains the time
  // Possible causes of a finding, most likely first, from all of its signals, the check's own
  // first; empty if the signals suggest none. Null: never suggests any.
  std::string (*suspects)(std::span<const Signal* const> signals) = nullptr;
  // One rule may serve several checks: those with the same address here.
  std::unique_ptr<Rule> (*make)();
};

template <class T>
std::unique_ptr<Rule> make() {
  return std::make_unique<T>();
}

// All of them, by precedence.
std::span<const Check> catalog();
// Null if no check has this id.
Check find_check(std::string_view id);
// Its index in the catalog.
std::size_t place_of(Check check);
// Whether `cause` makes `effect` expected. A check explains itself.
bool explains(Check cause, Check effect);

inline bool is_statistic(Check check) { return check->rests_on != CheckInfo::RestsOn::kNothing; }

}  // namespace presum::checks

#include "checks/declared.h"
