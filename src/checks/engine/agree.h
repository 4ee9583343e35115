// SPDX-License-Identifier: Apache-2.0
// What ranks must agree on: by value, within a tolerance, or by fingerprint; who does not, since
// when, and until when they did.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "checks/engine/step_context.h"

namespace presum::checks {

struct RankNumber {
  double value = 0;
  std::uint32_t rank = 0;
};

// The ranks whose number is farther than `tolerance` (of the middle one, where it is `relative`)
// from the middle one of those that are finite; everyone where these are half of them or more.
Blame far_from_middle(std::vector<RankNumber> held, double tolerance, bool relative = false);
// Likewise where the smallest and the largest finite number are farther apart than that; everyone
// also where each is near the middle one.
Blame apart(const std::vector<RankNumber>& held, double tolerance);

// Whether ranks agree on one thing, record by record.
class Agreement {
 public:
  // They disagree once that was so in this many records in a row.
  explicit Agreement(std::uint64_t records = 1) : records_(records) {}

  struct Broken {
    Blame blame;
    std::uint64_t first_step = 0;
    std::optional<std::uint64_t> equal_until;  // a step before; none where they never agreed
  };
  // `blame`: who differs now; of nobody where all agree. Only of steps at which that was known.
  std::optional<Broken> see(Blame blame, std::uint64_t step);

 private:
  std::uint64_t records_;
  Streak apart_;
  std::optional<std::uint64_t> equal_until_;
};

Signal sighting(Check check, std::uint64_t step, Agreement::Broken broken, double confidence,
                Evidence evidence);

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

inline constexpr const char* kNotSent = "The ranks did not send these fingerprints.";

// Compares every kind of the check that must match and that `counts` accepts.
Mismatch compare_kinds(
    const StepContext& context, Check check,
    bool (*counts)(FingerprintKind) = [](FingerprintKind) { return true; });

// How often a fact was told, and whether it differs. An environment variable ("env.") that only
// some have is unset on the others; of another fact nothing is known there.
struct FactCounts {
  std::uint64_t first = 0;  // value, as a hash
  std::size_t count = 0;
  bool differs = false;
};
// By key.
std::map<std::string_view, FactCounts> count_facts(const Roster& roster);
// Adds a fact that differs, with its values by rank.
void add_fact(const Roster& roster, const std::string& key, Mismatch& mismatch);

// When facts are compared: where hellos have brought some; with many not at each of them, so that
// hostile ones cost no more than the steps do.
class FactPace {
 public:
  // Asked at each record.
  bool due(const Roster& roster);
  void compared(std::size_t facts);

 private:
  std::uint64_t revision_ = 0;
  std::uint64_t pause_ = 0;  // records until they are compared again at the earliest
};

// The facts whose keys begin alike, as they stand; those that only some ranks told are not
// compared.
class PrefixedFacts {
 public:
  explicit PrefixedFacts(std::string_view prefix) : prefix_(prefix) {}
  // Asked at each record. Names are without the prefix; of those that differ 8 are told.
  const Mismatch& see(const Roster& roster);

 private:
  std::string_view prefix_;
  FactPace pace_;
  Mismatch found_;
};

// "a", "a and b", "a, b and c"; "a, b and 3 more" where `more` were left out.
std::string listed(const std::vector<std::string>& names, std::size_t more = 0);

}  // namespace presum::checks
