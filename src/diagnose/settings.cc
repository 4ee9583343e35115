// SPDX-License-Identifier: Apache-2.0
#include "diagnose/settings.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string_view>

#include "base/hash.h"
#include "diagnose/text.h"

namespace presum::diagnose {
namespace {

constexpr std::size_t kValueBytes = 64;  // of a fact shown as evidence
constexpr std::uint64_t kUnset = 0;

// What workers say about themselves and must share. All other facts may differ: host, pid, device,
// sampler, data, rank, and what nobody has thought of.
struct FactRule {
  std::string_view key;  // one that ends in a dot is the beginning of keys; unset is a value then
  Severity severity;
};
constexpr std::array kFactRules = {
    // These change numbers.
    FactRule{"torch", Severity::kWarning},
    FactRule{"cuda", Severity::kWarning},
    FactRule{"cudnn", Severity::kWarning},
    FactRule{"nccl", Severity::kWarning},
    FactRule{"backend", Severity::kWarning},
    FactRule{"dtypes", Severity::kWarning},
    FactRule{"model", Severity::kWarning},
    FactRule{"parameters", Severity::kWarning},
    FactRule{"elements", Severity::kWarning},
    FactRule{"world_size", Severity::kWarning},
    FactRule{"env.CUBLAS_WORKSPACE_CONFIG", Severity::kWarning},
    FactRule{"env.NVIDIA_TF32_OVERRIDE", Severity::kWarning},
    FactRule{"env.NCCL_ALGO", Severity::kWarning},
    FactRule{"env.NCCL_PROTO", Severity::kWarning},
    // These seldom do.
    FactRule{"python", Severity::kInfo},
    FactRule{"presum", Severity::kInfo},
    FactRule{"numpy", Severity::kInfo},
    FactRule{"transformers", Severity::kInfo},
    FactRule{"accelerate", Severity::kInfo},
    FactRule{"lightning", Severity::kInfo},
    FactRule{"datasets", Severity::kInfo},
    FactRule{"tokenizers", Severity::kInfo},
    FactRule{"threads", Severity::kInfo},
    FactRule{"platform", Severity::kInfo},
    FactRule{"driver", Severity::kInfo},
    FactRule{"device_model", Severity::kInfo},
    FactRule{"sketch", Severity::kInfo},
    FactRule{"every", Severity::kInfo},
    FactRule{"reduced_every", Severity::kInfo},
    FactRule{"env.", Severity::kInfo},
};

bool is_variable(std::string_view key) { return key.starts_with("env."); }

const FactRule* rule_of(std::string_view key) {
  const auto* const found =
      std::find_if(kFactRules.begin(), kFactRules.end(), [&](const FactRule& r) {
        return r.key == key || (r.key.ends_with('.') && key.starts_with(r.key));
      });
  return found == kFactRules.end() ? nullptr : found;
}

// A variable that only some workers have is unset on the others; another fact is unknown there.
Split split_fact(const Roster& roster, const std::string& key,
                 std::map<std::uint64_t, std::string>& names) {
  std::vector<Held> held;
  for (const auto& [rank, facts] : roster.facts()) {
    const auto found = facts.find(key);
    if (found == facts.end() && !is_variable(key)) continue;
    const std::uint64_t value = found == facts.end() ? kUnset : name_hash(found->second);
    names[value] = found == facts.end() ? "unset" : shortened(found->second, kValueBytes);
    held.push_back({value, rank});
  }
  return split(std::move(held));
}

// Whether a setting differs is decided by all kinds; these are fit for a person's eye.
bool shown(FingerprintKind kind) {
  return kind != FingerprintKind::kOptimizerSettings && kind != FingerprintKind::kModes &&
         kind != FingerprintKind::kDropouts;
}

}  // namespace

std::string listed(const std::vector<std::string>& names) {
  std::string out;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) out += i + 1 == names.size() ? " and " : ", ";
    out += names[i];
  }
  return out;
}

Mismatch compare_kinds(const StepRecord& record, Check check,
                       const std::function<bool(FingerprintKind)>& counts) {
  Mismatch out;
  for (const FingerprintInfo& kind : fingerprint_kinds()) {
    if (kind.expectation != Expectation::kMustMatch || kind.check != info(check).id) continue;
    if (!counts(kind.kind)) continue;
    const Split held = split(record, kind.kind);
    out.looked = out.looked || held.known > 1;
    if (!held.differs()) continue;
    out.blame.add(held.blame());
    std::string name(kind.name);
    std::replace(name.begin(), name.end(), '_', ' ');
    out.names.push_back(std::move(name));
    if (shown(kind.kind)) {
      out.evidence.emplace_back(kind.name,
                                held.text([&](std::uint64_t v) { return value_text(kind, v); }));
    }
  }
  return out;
}

void Settings::compare(const Look& look, Check check, const char* title, Book& book) {
  Mismatch found = compare_kinds(look.record, check, [](FingerprintKind) { return true; });
  if (!found.looked) {
    return book.cannot(check, "The workers did not send these fingerprints.");
  }
  book.looked(check);
  if (found.names.empty()) return;
  Signal signal = sighting(check, look.record.step, found.blame);
  signal.confidence = 0.95;
  signal.title = std::string(title) + listed(found.names);
  signal.evidence = std::move(found.evidence);
  signal.evidence.emplace_back("differ", listed(found.names));
  book.see(std::move(signal), 1);
}

void Settings::compare_facts(const Look& look) {
  std::set<std::string> keys;
  for (const auto& [rank, facts] : look.roster.facts()) {
    for (const auto& [key, value] : facts) keys.insert(key);
  }
  std::map<Severity, Mismatch> found;
  for (const std::string& key : keys) {
    const FactRule* rule = rule_of(key);
    if (rule == nullptr) continue;
    std::map<std::uint64_t, std::string> names;
    const Split held = split_fact(look.roster, key, names);
    facts_compared_ = facts_compared_ || held.known > 1;
    if (!held.differs()) continue;
    Mismatch& mismatch = found[rule->severity];
    mismatch.blame.add(held.blame());
    mismatch.names.push_back(shortened(key, kValueBytes));
    mismatch.evidence.emplace_back(shortened(key, kValueBytes),
                                   held.text([&](std::uint64_t v) { return names[v]; }));
  }
  standing_.clear();
  for (auto& [severity, mismatch] : found) {
    Signal signal = sighting(Check::kEnvironmentMismatch, look.record.step, mismatch.blame);
    signal.key = 1 + static_cast<std::uint64_t>(severity);
    signal.severity = severity;
    signal.confidence = severity == Severity::kInfo ? 0.5 : 0.8;
    signal.title = "{Ranks} had another environment: " + listed(mismatch.names);
    signal.evidence = std::move(mismatch.evidence);
    standing_.push_back(std::move(signal));
  }
}

void Settings::update(const Look& look, Book& book) {
  if (look.alone()) {
    book.cannot(Check::kOptimizerMismatch, kOneWorker);
    book.cannot(Check::kModeMismatch, kOneWorker);
    return book.cannot(Check::kEnvironmentMismatch, kOneWorker);
  }
  compare(look, Check::kOptimizerMismatch, "{Ranks} had another optimiser: ", book);
  compare(look, Check::kModeMismatch, "{Ranks} ran in another mode: ", book);
  compare(look, Check::kEnvironmentMismatch, "{Ranks} computed in another way: ", book);
  if (revision_ != look.roster.revision()) {
    revision_ = look.roster.revision();
    compare_facts(look);
  }
  if (facts_compared_) book.looked(Check::kEnvironmentMismatch);
  for (Signal signal : standing_) {
    signal.first_step = signal.last_step = look.record.step;
    book.see(std::move(signal));
  }
}

}  // namespace presum::diagnose
