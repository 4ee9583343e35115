// SPDX-License-Identifier: Apache-2.0
#include "checks/engine/signal_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace presum::checks {
namespace {

constexpr std::ptrdiff_t kSignalsPerCheck = 64;

// The earlier of the two; none if one is missing.
std::optional<std::uint64_t> earlier(std::optional<std::uint64_t> a,
                                     std::optional<std::uint64_t> b) {
  if (!a || !b) return std::nullopt;
  return std::min(*a, *b);
}

void extend(Signal& signal, const Signal& now) {
  signal.first_step = std::min(signal.first_step, now.first_step);
  signal.last_step = std::max(signal.last_step, now.last_step);
  signal.severity = std::max(signal.severity, now.severity);
  signal.confidence = std::max(signal.confidence, now.confidence);
  signal.effect = std::abs(now.effect) > std::abs(signal.effect) ? now.effect : signal.effect;
  signal.remedy = now.remedy;
  signal.evidence = now.evidence;
  signal.turned_away = now.turned_away;
  signal.derived = now.derived;
  signal.equal_until = earlier(signal.equal_until, now.equal_until);
  signal.certain_step = earlier(signal.certain_step, now.certain_step);
}

std::string steps_text(std::uint64_t steps) {
  return fmt::format("{} step{}", steps, steps == 1 ? "" : "s");
}

}  // namespace

Signal sighting(Check check, std::uint64_t step, Blame blame, double confidence,
                Evidence evidence) {
  Signal out;
  out.check = check;
  out.key = evidence.key();
  out.ranks = std::move(blame.ranks);
  out.everyone = blame.everyone;
  out.undecided = blame.undecided;
  out.first_step = out.last_step = step;
  out.severity = check->severity;
  out.confidence = confidence;
  out.evidence = std::move(evidence);
  return out;
}

void SignalLog::add(Signal now, std::uint64_t slack) {
  Ranks fresh = now.ranks;
  for (Signal& s : signals_) {
    if (s.check != now.check || s.key != now.key || !intersect(s.ranks, now.ranks)) continue;
    if (now.undecided && !s.undecided) {
      s.last_step = std::max(s.last_step, now.last_step);
      return;
    }
    if (s.undecided) {
      s.ranks = now.undecided ? unite(s.ranks, now.ranks) : now.ranks;
      s.everyone = now.everyone;
      s.undecided = now.undecided;
    }
    fresh = without(fresh, s.ranks);
    extend(s, now);
  }
  if (fresh.empty()) return;
  const bool everyone = now.everyone;
  const std::size_t count = now.ranks.size();
  now.everyone = everyone && fresh.size() == count;
  now.ranks = std::move(fresh);
  if (Signal* open = joinable(now, slack)) {
    open->ranks = unite(open->ranks, now.ranks);
    open->everyone = open->everyone || (everyone && open->ranks.size() >= count);
    return extend(*open, now);
  }
  now.id = ++ids_;
  signals_.push_back(std::move(now));
}

void SignalLog::replace(Check check, std::optional<Signal> now) {
  const auto old = std::ranges::find(signals_, check, &Signal::check);
  if (old != signals_.end() && now && now->key == old->key) {
    now->id = old->id;
    *old = std::move(*now);
    return;
  }
  std::erase_if(signals_, [&](const Signal& s) { return s.check == check; });
  if (now) add(std::move(*now));
}

void SignalLog::settle(Signal now) {
  const auto same = [&](const Signal& s) { return s.check == now.check && s.key == now.key; };
  const auto old = std::ranges::find_if(signals_, same);
  if (old == signals_.end()) return add(std::move(now));
  now.id = old->id;
  now.first_step = std::min(now.first_step, old->first_step);
  signals_.erase(std::remove_if(old + 1, signals_.end(), same), signals_.end());
  *old = std::move(now);
}

void SignalLog::soften(Check check, std::uint64_t key, const std::string& remedy) {
  for (Signal& s : signals_) {
    if (s.check != check || s.key != key) continue;
    s.severity = Severity::kInfo;
    s.remedy = remedy;
  }
}

void SignalLog::forget(Check check, std::uint64_t key) {
  std::erase_if(signals_, [&](const Signal& s) { return s.check == check && s.key == key; });
}

void SignalLog::retract(Check check) {
  std::erase_if(signals_, [&](const Signal& s) { return s.check == check; });
  coverage_[place_of(check)] = {};
}

void SignalLog::prolong(Check check, std::uint64_t key, const Ranks& ranks, std::uint64_t step) {
  for (Signal& s : signals_) {
    if (s.check != check || s.key != key || !intersect(s.ranks, ranks)) continue;
    s.last_step = std::max(s.last_step, step);
    ++s.lasted;
  }
}

Signal* SignalLog::joinable(const Signal& now, std::uint64_t slack) {
  Signal* newest = nullptr;
  Signal* same_key = nullptr;
  std::ptrdiff_t count = 0;
  for (Signal& s : signals_) {
    if (s.check != now.check) continue;
    newest = &s;
    if (s.key == now.key) same_key = &s;
    ++count;
  }
  const bool soon = same_key != nullptr && slack > 0 && now.last_step >= same_key->first_step &&
                    now.last_step - same_key->first_step <= slack;
  if (soon) return same_key;
  return count >= kSignalsPerCheck ? newest : nullptr;
}

Signal* SignalLog::find(Check check, std::uint32_t rank) {
  const auto found = std::find_if(signals_.rbegin(), signals_.rend(), [&](const Signal& s) {
    return s.check == check && std::ranges::binary_search(s.ranks, rank);
  });
  return found == signals_.rend() ? nullptr : &*found;
}

void SignalLog::needs(Check check, std::uint64_t more, std::string_view why) {
  Coverage& c = coverage_[place_of(check)];
  if (more <= c.more) return;
  c.more = more;
  c.needed = why;
}

void SignalLog::cannot(Check check, std::string_view why) {
  auto& reasons = coverage_[place_of(check)].cannot;
  const auto place = std::ranges::find_if(
      reasons, [&](const auto& reason) { return reason.times == 0 || reason.why == why; });
  if (place == reasons.end()) return;
  place->why = why;
  ++place->times;
}

CheckRecord SignalLog::record(Check check) const {
  using State = CheckRecord::State;
  const Coverage& c = coverage_[place_of(check)];
  bool found = false;
  std::uint64_t first = UINT64_MAX;
  for (const Signal& s : signals_) {
    if (s.check != check) continue;
    found = true;
    first = std::min(first, s.first_step);
  }
  CheckRecord out{std::string(check->id), State::kNotPossible,
                  std::string(std::ranges::max_element(c.cannot, {}, [](const auto& reason) {
                                return reason.times;
                              })->why)};
  if (found) {
    out.state = State::kFound;
    out.reason = fmt::format("Seen first at step {}.", first);
  } else if (c.looked > 0 && is_statistic(check)) {
    out.state = State::kNotTriggered;
    out.reason = fmt::format("No alarm in {}.", steps_text(c.looked));
  } else if (c.looked > 0 && c.more > 0) {
    out.state = State::kNotTriggered;
    out.reason = fmt::format("Looked at in {} of {} steps that it needs: {}", c.looked,
                             c.looked + c.more, c.needed);
  } else if (c.looked > 0) {
    out.state = State::kPassed;
    out.reason = fmt::format("Looked at in {}, and held.", steps_text(c.looked));
  } else if (!c.armed.empty()) {
    out.state = State::kNotTriggered;
    out.reason = std::string(c.armed);
  } else if (c.cannot.front().times == 0) {
    out.reason = "No step of this model was recorded.";
  }
  return out;
}

}  // namespace presum::checks
