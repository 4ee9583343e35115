// SPDX-License-Identifier: Apache-2.0
// What ranks must agree on, by value, within a tolerance, or by fingerprint: which ranks differ,
// since when, and until when they agreed.
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

// The ranks whose number is farther than `tolerance` from the median of the finite numbers
// (`relative`: times the median); everyone if these are at least half of them.
Blame far_from_middle(std::vector<RankNumber> held, double tolerance, bool relative = false);
// The same, but also if the smallest and the largest finite number are farther apart than the
// tolerance, even if each is near the median: those that are far from ranks that lie together, or
// everyone.
Blame apart(const std::vector<RankNumber>& held, double tolerance);

// Whether ranks agree on one thing, record by record.
class Agreement {
 public:
  // Ranks disagree after this many differing records in a row.
  explicit Agreement(std::uint64_t records = 1) : records_(records) {}

  struct Broken {
    Blame blame;
    std::uint64_t first_step = 0;
    std::optional<std::uint64_t> equal_until;  // an earlier step; none if they never agreed
  };
  // `blame`: the ranks that differ now, empty if all agree. Call only for steps where this is
  // known.
  std::optional<Broken> see(Blame blame, std::uint64_t step);

 private:
  std::uint64_t records_;
  Streak apart_;
  std::optional<std::uint64_t> equal_until_;
};

Signal sighting(Check check, std::uint64_t step, Agreement::Broken broken, double confidence,
                Evidence evidence);

// Evidence of values that must match and differ.
struct Differing {
  std::vector<std::string> differ;                          // names
  std::vector<std::pair<std::string, std::string>> values;  // by rank, as "0-1,3: 0.001; 2: 0.01"
  static constexpr std::tuple kFields{field("differ", &Differing::differ),
                                      field("values", &Differing::values)};
};

// The fingerprints of one check that must match and differ.
struct Mismatch {
  Blame blame;
  Differing seen;
  std::size_t more = 0;  // not shown
  bool looked = false;   // two ranks had a value of some kind
};

inline constexpr const char* kNotSent = "The ranks did not send these fingerprints.";

// Compares every kind of the check that must match and that `counts` accepts.
Mismatch compare_kinds(
    const StepContext& context, Check check,
    bool (*counts)(FingerprintKind) = [](FingerprintKind) { return true; });

// The number of ranks that sent a fact, and whether it differs. An environment variable ("env.")
// that only some ranks have is unset on the others; any other fact is unknown there.
struct FactCounts {
  std::uint64_t first = 0;  // hash of the first value
  std::size_t count = 0;
  bool differs = false;
};
// By key.
std::map<std::string_view, FactCounts> count_facts(const Roster& roster);
// Adds a fact that differs, with its values by rank.
void add_fact(const Roster& roster, const std::string& key, Mismatch& mismatch);

// When to compare facts: after hellos brought new ones. With many facts not after each hello, so
// that hostile hellos cost no more than the steps do.
class FactPace {
 public:
  // Call at each record.
  bool due(const Roster& roster);
  void compared(std::size_t facts);

 private:
  std::uint64_t revision_ = 0;
  std::uint64_t pause_ = 0;  // records until the next comparison at the earliest
};

// The latest facts whose keys share a prefix. Facts that only some ranks sent are not compared.
class PrefixedFacts {
 public:
  explicit PrefixedFacts(std::string_view prefix) : prefix_(prefix) {}
  // Call at each record. Names come without the prefix; 8 of the differing ones are shown.
  const Mismatch& see(const Roster& roster);

 private:
  std::string_view prefix_;
  FactPace pace_;
  Mismatch found_;
};

// "a", "a and b", "a, b and c"; "a, b and 3 more" if `more` were left out.
std::string listed(const std::vector<std::string>& names, std::size_t more = 0);

}  // namespace presum::checks
