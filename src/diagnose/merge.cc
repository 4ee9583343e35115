// SPDX-License-Identifier: Apache-2.0
#include "diagnose/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <tuple>

#include "diagnose/text.h"

namespace presum::diagnose {
namespace {

constexpr std::uint64_t kSlack = 50;  // steps
constexpr std::size_t kEvidence = 64;

std::uint64_t later(std::uint64_t step) { return step + std::min(kSlack, UINT64_MAX - step); }

std::size_t pairs(std::size_t workers) { return workers * (workers - 1) / 2; }

// Where some ranks have come to differ, those that are left look alike beside them. Only where
// pairs of these are few among all pairs is one of them the most alike often enough to be named.
bool leaves_alike(const Signal& cause, const Signal& effect) {
  if (effect.check != Check::kPairTooSimilar || !sets_apart(cause.check)) return false;
  if (cause.ranks.size() + 2 > effect.workers || intersect(cause.ranks, effect.ranks)) return false;
  return 3 * pairs(effect.workers - cause.ranks.size()) <= 2 * pairs(effect.workers);
}

bool causes(const Signal& cause, const Signal& effect) {
  // What is only worth knowing (a version that changes no number, uneven tokens of everyone) is no
  // cause of what one worker does.
  const bool harmless =
      cause.check == Check::kEnvironmentMismatch || cause.check == Check::kTokenImbalance;
  if (harmless && cause.severity == Severity::kInfo && effect.check != cause.check) return false;
  return later(effect.first_step) >= cause.first_step &&
         effect.first_step <= later(cause.last_step) &&
         ((explains(cause.check, effect.check) && intersect(cause.ranks, effect.ranks)) ||
          leaves_alike(cause, effect));
}

bool before(const Signal& a, const Signal& b) {
  return std::tuple(a.check, -static_cast<int>(a.severity), a.first_step, a.id) <
         std::tuple(b.check, -static_cast<int>(b.severity), b.first_step, b.id);
}

std::string snake(std::string_view check) {
  std::string out(check);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

bool has(const Evidence& evidence, const std::string& name) {
  return std::any_of(evidence.begin(), evidence.end(),
                     [&](const auto& entry) { return entry.first == name; });
}

// The name, with the prefix and a number in front where it is taken.
std::string free_name(const Evidence& evidence, const std::string& prefix,
                      const std::string& name) {
  std::string own = name;
  for (int n = 1; has(evidence, own); ++n) {
    own = n == 1 ? fmt::format("{}_{}", prefix, name) : fmt::format("{}_{}_{}", prefix, n, name);
  }
  return own;
}

void add(Evidence& evidence, const std::string& prefix, const Evidence& more) {
  const bool alarmed = has(evidence, kAlarmStep);
  keep_first_alarm(evidence, more);
  for (const auto& [name, value] : more) {
    if (evidence.size() >= kEvidence) return;
    if (alarmed && name == kAlarmStep) continue;
    evidence.emplace_back(free_name(evidence, prefix, name), value);
  }
}

// Pairs and streams of the same kind add up; of harder checks the head's ranks were first.
bool ranks_add_up(Check check) { return check == Check::kSharedRng || is_statistic(check); }

void absorb(Finding& finding, const Signal& head, const Signal& other) {
  const std::string id(info(other.check).id);
  finding.severity = std::max(finding.severity, other.severity);
  finding.last_step = std::max(finding.last_step, other.last_step);
  const bool lesser = other.check == head.check && other.severity < head.severity;
  if (!is_statistic(other.check) && !lesser) {
    finding.first_step = std::min(finding.first_step, other.first_step);
  }
  add(finding.evidence, snake(id), other.evidence);
  if (other.check == head.check) {
    if (ranks_add_up(head.check)) finding.ranks = unite(finding.ranks, other.ranks);
    return;
  }
  if (other.ranks != head.ranks) {
    add(finding.evidence, snake(id), {{snake(id) + "_ranks", rank_ranges(other.ranks)}});
  }
  if (std::find(finding.also.begin(), finding.also.end(), id) == finding.also.end()) {
    finding.also.push_back(id);
  }
}

}  // namespace

bool same_cause(const Signal& a, const Signal& b) { return causes(a, b) || causes(b, a); }

std::vector<std::vector<std::size_t>> merge(std::span<const Signal> signals) {
  std::vector<std::size_t> order(signals.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return before(signals[a], signals[b]); });
  std::vector<std::vector<std::size_t>> causes_found;
  for (const std::size_t at : order) {
    const auto home = std::find_if(
        causes_found.begin(), causes_found.end(), [&](const std::vector<std::size_t>& members) {
          return std::any_of(members.begin(), members.end(), [&](std::size_t member) {
            return same_cause(signals[member], signals[at]);
          });
        });
    if (home == causes_found.end()) {
      causes_found.push_back({at});
    } else {
      home->push_back(at);
    }
  }
  return causes_found;
}

Finding finding_of(std::span<const Signal> signals, std::span<const std::size_t> members) {
  const Signal& head = signals[members.front()];
  const CheckInfo& check = info(head.check);
  Finding out;
  out.check = check.id;
  out.severity = head.severity;
  out.ranks = head.ranks;
  out.first_step = head.first_step;
  out.last_step = head.last_step;
  out.confidence = head.confidence;
  out.evidence = head.evidence;
  out.remedy = head.remedy.empty() ? check.remedy : head.remedy;
  out.resembles = check.resembles;
  for (const std::size_t at : members.subspan(1)) absorb(out, head, signals[at]);
  out.title = with_ranks(head.title, out.ranks, head.everyone && out.ranks == head.ranks);
  return out;
}

}  // namespace presum::diagnose
