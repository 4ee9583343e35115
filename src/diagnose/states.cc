// SPDX-License-Identifier: Apache-2.0
#include "diagnose/states.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "base/hash.h"
#include "diagnose/text.h"

namespace presum::diagnose {
namespace {

constexpr std::uint64_t kRound = 50;  // steps in which every slice is hashed, twice over
constexpr std::size_t kClocks = 64;
constexpr std::size_t kGroups = 65536;
constexpr std::size_t kNamesShown = 4;

Check check_of(StateHash::Kind kind) {
  return kind == StateHash::Kind::kBuffers ? Check::kBufferDesync : Check::kParameterDesync;
}

bool same(const StateHash& a, const StateHash& b) {
  return a.group == b.group && a.kind == b.kind && a.value == b.value;
}

bool all_equal(const StepRecord& record) {
  const auto& first = record.workers.front().states;
  return std::all_of(record.workers.begin() + 1, record.workers.end(), [&](const WorkerRecord& w) {
    return std::equal(w.states.begin(), w.states.end(), first.begin(), first.end(), same);
  });
}

bool any(const StepRecord& record, StateHash::Kind kind) {
  return std::any_of(record.workers.begin(), record.workers.end(), [&](const WorkerRecord& w) {
    return std::any_of(w.states.begin(), w.states.end(),
                       [&](const StateHash& s) { return s.kind == kind; });
  });
}

// Groups of which two workers hold different values; workers without a group do not count.
std::set<std::uint64_t> differing(const StepRecord& record, StateHash::Kind kind) {
  std::unordered_map<std::uint64_t, std::uint64_t> first;
  std::set<std::uint64_t> out;
  for (const WorkerRecord& w : record.workers) {
    for (const StateHash& s : w.states) {
      if (s.kind == kind && first.try_emplace(s.group, s.value).first->second != s.value) {
        out.insert(s.group);
      }
    }
  }
  return out;
}

// Workers by all their values in these groups, in any order. Those that lack one are left out.
Split split_states(const StepRecord& record, StateHash::Kind kind,
                   const std::set<std::uint64_t>& groups) {
  std::vector<RankValue> held;
  for (const WorkerRecord& w : record.workers) {
    std::uint64_t sum = 0;
    std::size_t found = 0;
    for (const StateHash& s : w.states) {
      if (s.kind != kind || !groups.contains(s.group)) continue;
      sum += mix64(s.value ^ mix64(s.group));
      ++found;
    }
    if (found == groups.size()) held.push_back({sum, w.rank});
  }
  return split(std::move(held));
}

std::string names(const std::set<std::uint64_t>& groups, const Roster& roster) {
  std::string out;
  std::size_t shown = 0;
  for (const std::uint64_t group : groups) {
    if (shown++ == kNamesShown) return out + ", ...";
    if (!out.empty()) out += ", ";
    out += shortened(roster.group_name(group), 64);
  }
  return out;
}

}  // namespace

void States::update(const StepContext& context, SignalLog& log) {
  last_step_ = context.record.step;
  workers_ = context.workers();
  if (context.alone()) {
    log.cannot(Check::kParameterDesync, kOneWorker);
    return log.cannot(Check::kBufferDesync, kOneWorker);
  }
  compare_clocks(context, log);
  compare(context, StateHash::Kind::kParameters, log);
  compare(context, StateHash::Kind::kBuffers, log);
  looked_[looks_++ % looked_.size()] = context.record.step;
}

void States::compare(const StepContext& context, StateHash::Kind kind, SignalLog& log) {
  const Check check = check_of(kind);
  if (!any(context.record, kind)) {
    return log.cannot(check, kind == StateHash::Kind::kBuffers
                                 ? "The model has no shared buffers, or none were hashed."
                                 : "No parameters were hashed.");
  }
  log.checked(check);
  if (all_equal(context.record)) return;
  const Groups differ = differing(context.record, kind);
  if (differ.empty()) return;
  report(kind, context.record.step, split_states(context.record, kind, differ), differ,
         context.roster, log);
}

void States::report(StateHash::Kind kind, std::uint64_t step, const Split& held,
                    const Groups& differ, const Roster& roster, SignalLog& log) {
  if (!held.differs()) return;
  Groups& all = differ_[static_cast<std::size_t>(kind)];
  for (const std::uint64_t group : differ) {
    if (all.size() < kGroups) all.insert(group);
  }
  const bool buffers = kind == StateHash::Kind::kBuffers;
  Signal signal = sighting(check_of(kind), step, held.blame());
  signal.confidence = buffers ? 0.95 : 0.99;
  signal.title = std::string("{Ranks} held ") + (signal.everyone ? "different " : "other ") +
                 (buffers ? "buffers" : "parameters") + (signal.everyone ? "" : " than the others");
  signal.evidence = {{"groups", names(all, roster)},
                     {"groups_different", static_cast<std::int64_t>(all.size())},
                     {"distinct_copies", static_cast<std::int64_t>(held.groups.size())}};
  // All of it is hashed at step 0, and then within a round.
  if (looks_ >= looked_.size() || (looks_ > 0 && looked_[0] == 0)) {
    const std::uint64_t before = looked_[looks_ < looked_.size() ? 0 : looks_ % looked_.size()];
    signal.evidence.emplace_back(kEqualUntil, static_cast<std::int64_t>(before));
  }
  log.add(std::move(signal), kRound);
}

// A worker that leaves out a step of its optimiser stays behind; a packet that was made a moment
// earlier does not. One that had no input under join() rightly does: it gets the parameters in the
// end.
void States::compare_clocks(const StepContext& context, SignalLog& log) {
  joined_ = joined_ || std::any_of(context.record.workers.begin(), context.record.workers.end(),
                                   [](const WorkerRecord& w) { return w.micro_batches == 0; });
  if (joined_) return;
  std::vector<RankValue> held;
  for (const WorkerRecord& w : context.record.workers) held.push_back({w.optimizer_step, w.rank});
  const Split clocks = split(std::move(held));
  const bool counted = std::all_of(clocks.groups.begin(), clocks.groups.end(),
                                   [](const auto& g) { return g.value > 0; });
  lagging_ = clocks.differs() && counted ? lagging_ + 1 : 0;
  if (lagging_ == 1) lag_began_ = context.record.step;
  if (lagging_ < 2) return;
  Signal signal = sighting(Check::kParameterDesync, context.record.step, clocks.blame());
  signal.first_step = lag_began_;
  signal.key = 1;
  signal.confidence = 0.95;
  signal.title = signal.everyone ? "{Ranks} took different numbers of optimiser steps"
                                 : "{Ranks} took another number of optimiser steps than the others";
  signal.evidence = {
      {"optimizer_steps", clocks.text([](std::uint64_t v) { return std::to_string(v); })}};
  log.add(std::move(signal), kRound);
}

void States::farewell(std::uint32_t rank, const FinalState& last, const Roster& roster,
                      SignalLog& log) {
  const std::uint64_t steps = last.optimizer_steps;
  if (steps == 0 || last.states.empty()) return;
  if (farewells_.size() >= kClocks && !farewells_.contains(steps)) return;
  Farewells& all = farewells_[steps];
  std::uint64_t difference = 0;
  for (const StateHash& s : last.states) {
    if (s.kind != StateHash::Kind::kParameters || all.reference.size() >= kGroups) continue;
    if (all.reference.try_emplace(s.group, s.value).first->second == s.value) continue;
    difference += mix64(s.value ^ mix64(s.group));
    all.differ.insert(s.group);
  }
  all.held.push_back({difference, rank});
  log.checked(Check::kParameterDesync);
  const Split held = split(all.held);
  const bool decided = 2 * held.groups.front().ranks.size() > workers_;
  if (all.differ.empty() || (!decided && held.known < workers_)) return;
  report(StateHash::Kind::kParameters, last_step_, held, all.differ, roster, log);
}

}  // namespace presum::diagnose
