// SPDX-License-Identifier: Apache-2.0
#include "checks/engine/agree.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/hash.h"
#include "checks/engine/text.h"

namespace presum::checks {
namespace {

constexpr double kTogether = 0.2;          // of the whole range: that of ranks that lie together
constexpr std::size_t kValueBytes = 64;    // of a fact that is shown as evidence
constexpr std::size_t kPrefixedShown = 8;  // facts with a common prefix
constexpr std::uint64_t kFactsPerRecord = 1 << 11;  // comparisons, on average at most
constexpr std::uint64_t kUnset = 0;
constexpr const char* kDtypeName = "dtype of parameters or autocast";
constexpr const char* kInsideName = "precision inside the forward pass";

// All kinds decide whether a setting differs; these are the ones to show.
bool shown(FingerprintKind kind) {
  return kind != FingerprintKind::kOptimizerSettings && kind != FingerprintKind::kModes &&
         kind != FingerprintKind::kDropouts && kind != FingerprintKind::kDtype;
}

std::string plain_name(const FingerprintInfo& kind) {
  switch (kind.kind) {
    case FingerprintKind::kMode:
    case FingerprintKind::kModes:
      return "training or evaluation";
    case FingerprintKind::kDropout:
    case FingerprintKind::kDropouts:
      return "dropout";
    case FingerprintKind::kOptimizerClass:
      return "class";
    case FingerprintKind::kOptimizerSettings:
      return "settings";
    case FingerprintKind::kDtype:
      return kDtypeName;
    case FingerprintKind::kForwardPrecision:
      return kInsideName;
    default:
      break;
  }
  std::string name(kind.name);
  std::replace(name.begin(), name.end(), '_', ' ');
  return name;
}

// The fact with the names behind a kind's hashes; null if there is none.
const char* fact_for(FingerprintKind kind) {
  if (kind == FingerprintKind::kOptimizerClass) return "optimizer";
  return kind == FingerprintKind::kForwardPrecision ? "forward_precision" : nullptr;
}

// Values of a kind as text, from the facts of the ranks.
std::string held_text(const StepContext& context, const FingerprintInfo& kind, const Split& held) {
  std::map<std::uint64_t, std::string> names;
  const char* fact = fact_for(kind.kind);
  for (const Split::Group& group : held.groups) {
    names[group.value] = value_text(kind, group.value);
    if (fact == nullptr) continue;
    const std::string name = context.roster.fact_of(group.ranks.front(), fact);
    if (!name.empty() && name != "unknown") names[group.value] = shortened(name, kValueBytes);
  }
  return held.text([&](std::uint64_t value) { return names[value]; });
}

// Facts that a rank may omit; they are then unset on that rank.
bool is_optional(std::string_view key) {
  return key.starts_with("env.") || key.starts_with("allow.");
}

Split split_fact(const Roster& roster, const std::string& key,
                 std::map<std::uint64_t, std::string>& names) {
  std::vector<RankValue> held;
  for (const auto& [rank, facts] : roster.facts()) {
    const auto found = facts.find(key);
    if (found == facts.end() && !is_optional(key)) continue;
    const std::uint64_t value = found == facts.end() ? kUnset : name_hash(found->second);
    names[value] = found == facts.end() ? "unset" : shortened(found->second, kValueBytes);
    held.push_back({value, rank});
  }
  return split(std::move(held));
}

// Of the finite numbers of all ranks but these.
double range_without(const std::vector<RankNumber>& held, const Ranks& ranks) {
  double least = kNaN;
  double most = kNaN;
  for (const RankNumber& h : held) {
    if (!std::isfinite(h.value) || std::ranges::binary_search(ranks, h.rank)) continue;
    least = std::fmin(least, h.value);
    most = std::fmax(most, h.value);
  }
  return most - least;
}

}  // namespace

Blame far_from_middle(std::vector<RankNumber> held, double tolerance, bool relative) {
  Blame everyone{{}, true};
  for (const RankNumber& h : held) insert(everyone.ranks, h.rank);
  std::erase_if(held, [](const RankNumber& h) { return !std::isfinite(h.value); });
  if (held.size() < 2) return {};
  std::ranges::sort(held, {}, &RankNumber::value);
  const double middle = held[held.size() / 2].value;
  const double most = relative ? tolerance * std::abs(middle) : tolerance;
  Blame out;
  for (const RankNumber& h : held) {
    if (std::abs(h.value - middle) > most) insert(out.ranks, h.rank);
  }
  return 2 * out.ranks.size() < held.size() ? out : everyone;
}

Blame apart(const std::vector<RankNumber>& held, double tolerance) {
  Blame out = far_from_middle(held, tolerance);
  if (!out.ranks.empty()) return out;
  const double range = range_without(held, {});
  if (!(range > tolerance)) return {};
  out = far_from_middle(held, range / 2);
  if (!out.ranks.empty() && range_without(held, out.ranks) < kTogether * range) return out;
  out = {{}, true};
  for (const RankNumber& h : held) insert(out.ranks, h.rank);
  return out;
}

std::optional<Agreement::Broken> Agreement::see(Blame blame, std::uint64_t step) {
  const bool differ = !blame.ranks.empty();
  if (!differ) equal_until_ = step;
  if (apart_.see(differ, step) < records_ || !differ) return std::nullopt;
  return Broken{std::move(blame), apart_.first_step, equal_until_};
}

Signal sighting(Check check, std::uint64_t step, Agreement::Broken broken, double confidence,
                Evidence evidence) {
  Signal out = sighting(check, step, std::move(broken.blame), confidence, std::move(evidence));
  out.first_step = broken.first_step;
  out.equal_until = broken.equal_until;
  return out;
}

std::map<std::string_view, FactCounts> count_facts(const Roster& roster) {
  std::map<std::string_view, FactCounts> out;
  for (const auto& [rank, facts] : roster.facts()) {
    for (const auto& [key, text] : facts) {
      FactCounts& fact = out[key];
      const std::uint64_t value = name_hash(text);
      if (fact.count++ == 0) fact.first = value;
      fact.differs = fact.differs || value != fact.first;
    }
  }
  for (auto& [key, fact] : out) {
    fact.differs = fact.differs || (is_optional(key) && fact.count < roster.facts().size());
  }
  return out;
}

void add_fact(const Roster& roster, const std::string& key, Mismatch& mismatch) {
  std::map<std::uint64_t, std::string> names;
  const Split held = split_fact(roster, key, names);
  mismatch.blame.add(held.blame());
  Differing& found = mismatch.seen;
  found.differ.push_back(shortened(key, kValueBytes));
  found.values.emplace_back(found.differ.back(),
                            held.text([&](std::uint64_t v) { return names[v]; }));
}

bool FactPace::due(const Roster& roster) {
  if (pause_ > 0) --pause_;
  if (pause_ > 0 || revision_ == roster.revision()) return false;
  revision_ = roster.revision();
  return true;
}

void FactPace::compared(std::size_t facts) { pause_ = facts / kFactsPerRecord; }

const Mismatch& PrefixedFacts::see(const Roster& roster) {
  if (!pace_.due(roster)) return found_;
  found_ = {};
  std::size_t compared = 0;
  for (const auto& [key, fact] : count_facts(roster)) {
    compared += fact.count;
    if (!key.starts_with(prefix_)) continue;
    if (fact.count < 2 || fact.count < roster.facts().size()) continue;
    found_.looked = true;
    if (!fact.differs || found_.seen.differ.size() == kPrefixedShown) continue;
    add_fact(roster, std::string(key), found_);
    found_.seen.differ.back().erase(0, prefix_.size());
    found_.seen.values.back().first.erase(0, prefix_.size());
  }
  pace_.compared(compared);
  return found_;
}

std::string listed(const std::vector<std::string>& names, std::size_t more) {
  std::vector<std::string> each = names;
  if (more > 0) each.push_back(std::to_string(more) + " more");
  std::string out;
  for (std::size_t i = 0; i < each.size(); ++i) {
    if (i > 0) out += i + 1 == each.size() ? " and " : ", ";
    out += each[i];
  }
  return out;
}

Mismatch compare_kinds(const StepContext& context, Check check, bool (*counts)(FingerprintKind)) {
  Mismatch out;
  std::vector<std::string>& names = out.seen.differ;
  const auto named = [&](const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  for (const FingerprintKind looked_at : check->fingerprints) {
    const FingerprintInfo& kind = *find_fingerprint_kind(static_cast<std::uint32_t>(looked_at));
    if (kind.expectation != Expectation::kMustMatch || !counts(kind.kind)) continue;
    const Split held = split(context.record, kind.kind);
    out.looked = out.looked || held.known > 1;
    if (!held.differs()) continue;
    out.blame.add(held.blame());
    if (!named(plain_name(kind))) names.push_back(plain_name(kind));
    if (shown(kind.kind)) out.seen.values.emplace_back(kind.name, held_text(context, kind, held));
  }
  // A learning rate is one of the settings; autocast around the forward pass also applies inside
  // it.
  if (names.size() > 1) std::erase(names, "settings");
  if (named(kDtypeName)) std::erase(names, kInsideName);
  return out;
}

}  // namespace presum::checks
