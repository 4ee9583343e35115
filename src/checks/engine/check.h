// SPDX-License-Identifier: Apache-2.0
// What a check declares of itself. `presum explain`, the page, the order of causes and
// docs/findings.md are made of it.
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

// A check is its declaration's address. CMake lists the declarations (declared.h), so a new check
// is one file.
using Check = const CheckInfo*;

struct CheckInfo {
  // Alarms that it rests on alone.
  enum class RestsOn : std::uint8_t { kNothing, kStatistics, kTimes };

  std::string_view id;
  Severity severity;
  std::string_view compares;     // one line for people
  std::string_view fires;        // when, for docs/findings.md
  std::string_view consequence;  // of leaving it, one sentence
  std::string_view cannot_see;
  std::string_view mistake;  // as it looks in a program, lines of Python
  std::string_view fix;
  std::string_view resembles = {};  // a public report; may be empty
  int precedence;                   // of the checks of one finding the lowest is its head
  std::span<const Check> explains = {};
  std::span<const FingerprintKind> fingerprints = {};  // that it looks at
  RestsOn rests_on = RestsOn::kNothing;
  bool compares_ranks = false;  // it is not asked about one alone
  bool of_time = false;         // it changes no number of what is trained
  bool of_a_step = false;       // the samples and layers behind one step say more: presum blame
  // How its signals merge: docs/findings.md, "One cause, one finding".
  bool sets_apart = false;            // its ranks come to have other gradients than the rest
  bool left_alike = false;            // shows of ranks that are left beside those set apart
  bool outvotes = false;              // beside its ranks, which agree, the others seem turned away
  bool may_be_design = false;         // of ranks that share data: explained by information too
  bool info_explains = true;          // also where it is information
  bool names_cause = false;           // also as information it explains what is graver
  bool explains_single_ranks = true;  // also where it is so of all ranks
  bool joins_itself = true;           // two of its signals may have one cause
  bool dates_finding = true;          // a finding that absorbs it begins with it; no statistic does
  bool ranks_add_up = false;  // one kind's signals name the ranks of all; any statistic's do
  bool dates_itself = false;  // its sentence says when
  // What a finding may come from, the likeliest first, by all signals of its cause, its own first;
  // empty where nothing says so. Null: nothing ever does.
  std::string (*suspects)(std::span<const Signal* const> signals) = nullptr;
  // One rule, by its address, may make several checks.
  std::unique_ptr<Rule> (*make)();
};

template <class T>
std::unique_ptr<Rule> make() {
  return std::make_unique<T>();
}

// All of them, by precedence.
std::span<const Check> catalog();
// By its id; null where there is none of this name.
Check find_check(std::string_view id);
// Its place in the catalog.
std::size_t place_of(Check check);
// Whether `effect` is to be expected where `cause` is found. A check explains itself.
bool explains(Check cause, Check effect);

inline bool is_statistic(Check check) { return check->rests_on != CheckInfo::RestsOn::kNothing; }

}  // namespace presum::checks

#include "checks/declared.h"
