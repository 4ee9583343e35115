// SPDX-License-Identifier: Apache-2.0
#include "checks/engine/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <string_view>
#include <tuple>

#include "checks/engine/check.h"

namespace presum::checks {
namespace {

constexpr std::uint64_t kSlack = 50;   // steps
constexpr std::size_t kEvidence = 16;  // per finding
// Shares of the confidence in a statistic, in addition to the 0.5 of an alarm.
constexpr double kOfEffect = 0.2;
constexpr double kOfLasting = 0.15;
constexpr double kOfOthers = 0.1;

constexpr std::string_view kCompare =
    " Run `presum compare RUN HEALTHY_RUN` with a healthy run of the same training: it shows the "
    "step at which the runs begin to differ, and in what (data, settings, parameters, loss, "
    "gradient).";

std::uint64_t later(std::uint64_t step) { return step + std::min(kSlack, UINT64_MAX - step); }

std::size_t pairs(std::size_t workers) { return workers * (workers - 1) / 2; }

// When some ranks are set apart, the remaining ranks look alike beside them. One of their pairs is
// the most alike often enough only if such pairs are few among all pairs.
bool leaves_alike(const Signal& cause, const Signal& effect) {
  if (!cause.check->sets_apart || !effect.check->left_alike) return false;
  if (cause.ranks.size() + 2 > effect.workers || intersect(cause.ranks, effect.ranks)) return false;
  return 3 * pairs(effect.workers - cause.ranks.size()) <= 2 * pairs(effect.workers);
}

bool turns_away(const Signal& cause, const Signal& effect) {
  return cause.check->outvotes && effect.turned_away && !intersect(cause.ranks, effect.ranks);
}

// Information explains other information, and what may be by design.
bool grave_enough(const Signal& cause, const Signal& effect) {
  if (cause.severity > Severity::kInfo || cause.check->names_cause) return true;
  return cause.check->info_explains &&
         (effect.severity == Severity::kInfo || effect.check->may_be_design);
}

// An effect may be seen up to 50 steps before its cause, because hashes take turns, and up to 50
// after the cause was last seen.
bool at_its_time(const Signal& cause, const Signal& effect) {
  return later(effect.first_step) >= cause.first_step &&
         effect.first_step <= later(cause.last_step);
}

bool causes(const Signal& cause, const Signal& effect) {
  if (!at_its_time(cause, effect)) return false;
  if (cause.check == effect.check) {
    return cause.check->joins_itself && intersect(cause.ranks, effect.ranks);
  }
  if (!grave_enough(cause, effect)) return false;
  // Of two ranks, a statistic names both where another check names all.
  const bool of_all = effect.everyone || effect.ranks == cause.ranks;
  if (cause.everyone && !of_all && !cause.check->explains_single_ranks) return false;
  return (explains(cause.check, effect.check) && intersect(cause.ranks, effect.ranks)) ||
         leaves_alike(cause, effect) || turns_away(cause, effect);
}

// Within a check, the gravest first, then signals that name a minority. For a statistic, the signal
// that was raised first: its sentence stays when another follows, even if that one began earlier.
// A statistic that is computed from others, such as the norm given the loss, comes after them.
bool before(const Signal& a, const Signal& b) {
  const auto place = [](const Signal& s) {
    return std::tuple(s.check->precedence, -static_cast<int>(s.severity), s.everyone,
                      is_statistic(s.check) ? 0 : s.first_step, s.derived, s.id);
  };
  return place(a) < place(b);
}

Finding::Evidence evidence_of(const Signal& signal, const Ranks& ranks, std::size_t world) {
  const Who who{ranks, signal.everyone && ranks == signal.ranks,
                world == 0 || ranks.size() >= world};
  return {std::string(signal.check->id), ranks, signal.evidence.sentence(who),
          signal.evidence.json()};
}

void keep_earlier(std::optional<std::uint64_t>& step, std::optional<std::uint64_t> other) {
  if (step && other) step = std::min(*step, *other);
}

// The head's sentence also holds for these ranks.
bool ranks_add_up(const Signal& head, const Signal& other) {
  return is_statistic(head.check) && other.key == head.key && other.check == head.check &&
         other.everyone == head.everyone;
}

// The confidence of a statistic grows with its effect, with the steps since its alarm in which it
// persisted, and with other statistics for the same ranks: docs/findings.md, "Confidence".
double confidence_of(std::span<const Signal> signals, std::span<const std::size_t> members) {
  const Signal& head = signals[members.front()];
  if (head.effect == 0) return head.confidence;
  std::uint64_t lasted = 0;
  bool corroborated = false;
  for (const std::size_t at : members) {
    const Signal& s = signals[at];
    if (s.ranks != head.ranks || s.effect == 0) continue;
    lasted = std::max(lasted, s.lasted);
    corroborated = corroborated || s.key != head.key || s.check != head.check;
  }
  const double size = std::abs(head.effect);
  const double steps = static_cast<double>(lasted);
  return head.confidence + kOfEffect * size / (size + 1) + kOfLasting * steps / (steps + kSlack) +
         (corroborated ? kOfOthers : 0);
}

void absorb(Finding& finding, const Signal& head, const Signal& other, std::size_t world) {
  const std::string id(other.check->id);
  // What the program allows it allows with its effects.
  if (!head.allowed) finding.severity = std::max(finding.severity, other.severity);
  finding.last_step = std::max(finding.last_step, other.last_step);
  if (other.check == head.check && other.severity < head.severity) return;
  if (!is_statistic(other.check) && other.check->dates_finding) {
    finding.first_step = std::min(finding.first_step, other.first_step);
  }
  // An alarm clears what other statistics of these ranks had gathered.
  if (is_statistic(head.check) && other.check == head.check && other.ranks == head.ranks) {
    finding.first_step = std::min(finding.first_step, other.first_step);
  }
  keep_earlier(finding.equal_until, other.equal_until);
  keep_earlier(finding.certain_step, other.certain_step);
  if (ranks_add_up(head, other)) finding.ranks = unite(finding.ranks, other.ranks);
  if (finding.evidence.size() < kEvidence) {
    finding.evidence.push_back(evidence_of(other, other.ranks, world));
  }
  if (other.check == head.check) return;
  if (std::ranges::find(finding.also, id) == finding.also.end()) finding.also.push_back(id);
}

// Only statistics stand out; a comparison with another run can show which input causes them.
bool asks_for_comparison(std::span<const Signal> signals, std::span<const std::size_t> members) {
  return signals[members.front()].severity > Severity::kInfo &&
         std::ranges::all_of(members, [&](std::size_t m) {
           return signals[m].check->rests_on == CheckInfo::RestsOn::kStatistics;
         });
}

bool same_cause(const Signal& a, const Signal& b) { return causes(a, b) || causes(b, a); }

}  // namespace

std::vector<std::vector<std::size_t>> merge(std::span<const Signal> signals) {
  std::vector<std::size_t> order(signals.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, before, [&](std::size_t at) -> const Signal& { return signals[at]; });
  std::vector<std::vector<std::size_t>> causes_found;
  for (const std::size_t at : order) {
    const auto joins = [&](std::size_t member) { return same_cause(signals[member], signals[at]); };
    const auto home = std::ranges::find_if(
        causes_found, [&](const auto& members) { return std::ranges::any_of(members, joins); });
    if (home == causes_found.end()) {
      causes_found.push_back({at});
    } else {
      home->push_back(at);
    }
  }
  return causes_found;
}

Finding finding_of(std::span<const Signal> signals, std::span<const std::size_t> members,
                   std::size_t world) {
  const Signal& head = signals[members.front()];
  Finding out;
  out.check = head.check->id;
  out.severity = head.severity;
  out.ranks = head.ranks;
  out.first_step = head.first_step;
  out.last_step = head.last_step;
  out.equal_until = head.equal_until;
  out.certain_step = head.certain_step;
  out.confidence = confidence_of(signals, members);
  out.evidence.emplace_back();
  out.remedy = head.remedy.empty() ? std::string(head.check->fix) : head.remedy;
  out.resembles = head.check->resembles;
  if (asks_for_comparison(signals, members)) out.remedy += kCompare;
  for (const std::size_t at : members.subspan(1)) absorb(out, head, signals[at], world);
  out.evidence.front() = evidence_of(head, out.ranks, world);
  out.title = out.evidence.front().sentence;
  if (head.check->suspects != nullptr && out.severity > Severity::kInfo) {
    std::vector<const Signal*> all;
    for (const std::size_t at : members) all.push_back(&signals[at]);
    out.suspects = head.check->suspects(all);
  }
  return out;
}

}  // namespace presum::checks
