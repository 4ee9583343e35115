// SPDX-License-Identifier: Apache-2.0
#include "diagnose/resume.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/hash.h"
#include "diagnose/text.h"

namespace presum::diagnose {
namespace {

constexpr double kSame = 1e-6;  // of the norm: sums of the same values in another order
constexpr std::size_t kNames = 4;
constexpr const char* kNothing = "The run does not continue an earlier recording.";
constexpr const char* kAnew =
    "The optimiser counts from 0: the run starts anew, perhaps from saved weights.";
constexpr const char* kUncounted =
    "The optimiser does not count its steps, and the weights are none that were saved.";
constexpr const char* kNotSaved =
    "Nothing was saved at this number of optimiser steps while presum watched.";
constexpr const char* kAnotherModel =
    "The run was continued with another model: no layer has the name of one that was saved.";
constexpr const char* kNoPass = "The samples of the pass that was interrupted are not known.";

// Parameters of one group, of all workers that told them: shards add up.
struct Whole {
  std::uint64_t elements = 0;
  double squares = 0;
  std::uint64_t parameters = 0;
  std::uint64_t optimizer = 0;
  std::uint64_t shards = 0;  // which ones
  std::vector<double> sketch;
  bool sketched = true;
};

using Model = std::map<std::uint64_t, Whole>;  // by group

void join(Whole& whole, const MomentGroup& group) {
  const auto of_shard = [&](std::uint64_t hash) {
    return group.shard == 0 ? hash : mix64(hash ^ group.shard);
  };
  whole.elements += group.elements;
  whole.squares += group.squares;
  whole.parameters += of_shard(group.parameters);
  whole.optimizer += of_shard(group.optimizer);
  whole.shards += mix64(group.shard);
  whole.sketched = whole.sketched && !group.sketch.empty();
  if (whole.sketch.empty()) whole.sketch.resize(group.sketch.size());
  for (std::size_t i = 0; i < std::min(whole.sketch.size(), group.sketch.size()); ++i) {
    whole.sketch[i] += static_cast<double>(group.sketch[i]);
  }
}

template <class Workers>
Model model_of(const Workers& workers) {
  Model out;
  std::set<std::pair<std::uint64_t, std::uint32_t>> seen;  // replicas of a shard count once
  for (const auto& [replica, moment] : workers) {
    for (const MomentGroup& group : moment->groups) {
      if (seen.emplace(group.id, group.shard).second) join(out[group.id], group);
    }
  }
  return out;
}

// How far apart, over the norm; NaN where that is not known.
double distance(const Whole& a, const Whole& b) {
  if (!a.sketched || !b.sketched || a.sketch.size() != b.sketch.size()) return kNaN;
  double squares = 0;
  for (std::size_t i = 0; i < a.sketch.size(); ++i) {
    squares += (a.sketch[i] - b.sketch[i]) * (a.sketch[i] - b.sketch[i]);
  }
  return std::sqrt(squares);
}

struct Apart {
  std::vector<std::uint64_t> groups;
  std::size_t of = 0;  // groups in both
  double squares = 0;  // of the distances
  double all = 0;      // of the parameters that differ
  bool known = true;
};

bool same_parameters(const Whole& a, const Whole& b) {
  if (a.shards == b.shards && a.elements == b.elements) return a.parameters == b.parameters;
  return distance(a, b) <= kSame * std::sqrt(a.squares);
}

Apart parameters_apart(const Model& then, const Model& now) {
  Apart out;
  for (const auto& [id, was] : then) {
    const auto is = now.find(id);
    if (is == now.end()) continue;
    ++out.of;
    if (same_parameters(was, is->second)) continue;
    out.groups.push_back(id);
    const double d = distance(was, is->second);
    out.known = out.known && std::isfinite(d);
    out.squares += d * d;
    out.all += was.squares;
  }
  return out;
}

std::vector<std::uint64_t> states_apart(const Model& then, const Model& now) {
  std::vector<std::uint64_t> out;
  for (const auto& [id, was] : then) {
    const auto is = now.find(id);
    if (is == now.end() || was.optimizer == 0 || was.shards != is->second.shards) continue;
    if (was.optimizer != is->second.optimizer) out.push_back(id);
  }
  return out;
}

std::string names(const std::vector<std::uint64_t>& groups, const Roster& roster) {
  std::string out;
  for (std::size_t i = 0; i < groups.size() && i < kNames; ++i) {
    out += (i == 0 ? "" : ", ") + shortened(roster.group_name(groups[i]), 64);
  }
  return groups.size() > kNames ? out + ", ..." : out;
}

bool same_generators(const Moment& a, const Moment& b) {
  return std::ranges::all_of(a.generators, [&](const FingerprintValue& g) {
    const auto at = std::ranges::find(b.generators, g.kind, &FingerprintValue::kind);
    return at == b.generators.end() || at->value == g.value;
  });
}

std::string steps_text(double steps) { return fmt::format("{:.0f} optimiser steps", steps); }

}  // namespace

Blame Resume::everyone() const {
  Blame out{{}, true};
  for (const auto& [replica, rank] : ranks_) insert(out.ranks, rank);
  return out;
}

Signal Resume::signal_of(std::uint64_t key, Blame blame) const {
  Signal signal = sighting(Check::kResumeMismatch, 0, std::move(blame));
  signal.key = key;
  signal.confidence = 0.95;
  signal.workers = static_cast<std::uint32_t>(ranks_.size());
  return signal;
}

void Resume::begins(const Identity& who, const Moment& moment, const Roster& roster,
                    SignalLog& log) {
  if (moment.kind != Moment::Kind::kBegun || judged_) return;
  if (!left_) return log.cannot(Check::kResumeMismatch, kNothing);
  begun_[who.replica] = moment;
  ranks_[who.replica] = who.rank;
  if (begun_.size() < who.replicas) return;
  judged_ = true;
  judge(roster, log);
}

// Of the moments with as many optimiser steps the last; where steps are not counted, the last with
// these weights.
std::optional<std::uint64_t> Resume::matching(SignalLog& log) const {
  const double steps = begun_.begin()->second.optimizer_steps;
  if (steps == 0) {
    log.cannot(Check::kResumeMismatch, kAnew);
    return std::nullopt;
  }
  Workers now;
  for (const auto& [replica, moment] : begun_) now[replica] = &moment;
  for (std::size_t i = left_->saved.size(); i-- > 0;) {
    const MomentRecord& one = left_->saved[i];
    if (std::isnan(steps)) {
      const Model then = model_of(saved_with(one));
      const Apart apart = parameters_apart(then, model_of(now));
      if (apart.of > 0 && apart.groups.empty()) return i;
    } else if (one.optimizer_steps == steps) {
      return i;
    }
  }
  log.cannot(Check::kResumeMismatch, std::isnan(steps) ? kUncounted : kNotSaved);
  return std::nullopt;
}

Resume::Workers Resume::saved_with(const MomentRecord& one) const {
  Workers out;
  for (const MomentRecord& other : left_->saved) {
    if (other.model.segment == one.model.segment && other.step == one.step) {
      out[other.replica] = &other;
    }
  }
  return out;
}

void Resume::judge(const Roster& roster, SignalLog& log) {
  const auto at = matching(log);
  if (!at) return;
  const MomentRecord& one = left_->saved[*at];
  const Workers then = saved_with(one);
  Workers now;
  for (const auto& [replica, moment] : begun_) now[replica] = &moment;
  if (parameters_apart(model_of(then), model_of(now)).of == 0) {
    return log.cannot(Check::kResumeMismatch, kAnotherModel);
  }
  step_ = one.step;
  log.checked(Check::kResumeMismatch);
  if (judge_weights(then, now, roster, log)) judge_generators(then, now, roster, log);
  judge_settings(then, log);
}

// False where it goes on from something else.
bool Resume::judge_weights(const Workers& then, const Workers& now, const Roster& roster,
                           SignalLog& log) {
  const Model was = model_of(then);
  const Model is = model_of(now);
  const double steps = then.begin()->second->optimizer_steps;
  const Apart apart = parameters_apart(was, is);
  if (!apart.groups.empty()) {
    Signal signal = signal_of(1, everyone());
    signal.title = fmt::format("{{Ranks}} went on with other weights than were saved after {}",
                               steps_text(steps));
    signal.evidence = {{"layers", names(apart.groups, roster)},
                       {"layers_of", static_cast<std::int64_t>(apart.of)}};
    if (apart.known && apart.all > 0) {
      signal.evidence.emplace_back("percent_apart", 100 * std::sqrt(apart.squares / apart.all));
    }
    for (const MomentRecord& other : left_->saved) {
      const Apart from = parameters_apart(model_of(saved_with(other)), is);
      if (from.of == 0 || !from.groups.empty()) continue;
      signal.evidence.emplace_back("as_saved_after", steps_text(other.optimizer_steps));
      break;
    }
    signal.remedy =
        "Load model and optimiser from one checkpoint, after the model is built and before it is "
        "wrapped, and look for keys that `strict=False` left out.";
    log.add(std::move(signal));
    return false;
  }
  const std::vector<std::uint64_t> states = states_apart(was, is);
  if (states.empty()) return true;
  Signal signal = signal_of(2, everyone());
  signal.title = fmt::format(
      "{{Ranks}} went on with another optimiser state than was saved after {}", steps_text(steps));
  signal.evidence = {{"layers", names(states, roster)},
                     {"layers_of", static_cast<std::int64_t>(was.size())}};
  signal.remedy =
      "Load the optimiser's state from the checkpoint of the weights, after it holds the model's "
      "parameters, in the order in which it was saved.";
  log.add(std::move(signal));
  return true;
}

// A loader may draw before the first forward pass: only where some ranks go on with what they left
// the others ought to as well.
void Resume::judge_generators(const Workers& then, const Workers& now, const Roster& roster,
                              SignalLog& log) const {
  Blame others;
  std::size_t same = 0;
  for (const auto& [replica, moment] : now) {
    const auto was = then.find(replica);
    if (was == then.end() || was->second->generators.empty()) return;
    if (same_generators(*was->second, *moment)) {
      ++same;
    } else {
      insert(others.ranks, ranks_.at(replica));
    }
  }
  if (same == 0 || others.ranks.empty()) return;
  Signal signal = signal_of(3, std::move(others));
  signal.severity = Severity::kWarning;
  signal.title = "{Ranks} went on with other random generators than were saved, unlike the others";
  signal.remedy =
      "Save the states of the random generators of every rank, and load each rank's own.";
  const auto hosts = roster.hosts(signal.ranks);
  log.add(std::move(signal));
}

void Resume::judge_settings(const Workers& then, SignalLog& log) const {
  std::string changed;
  const auto add = [&](const std::string& text) {
    changed += (changed.empty() ? "" : "; ") + text;
  };
  if (left_->workers != 0 && left_->workers != begun_.size()) {
    add(fmt::format("{} to {} workers", left_->workers, begun_.size()));
  }
  const double was = then.begin()->second->learning_rate;
  const double is = begun_.begin()->second.learning_rate;
  if (std::isfinite(was) && std::isfinite(is) && was != is) {
    add(fmt::format("learning rate {} to {}", number(was), number(is)));
  }
  if (changed.empty()) return;
  Signal signal = signal_of(4, everyone());
  signal.severity = Severity::kInfo;
  signal.title = "{Ranks} went on with other settings than before the restart";
  signal.evidence = {{"settings_changed", changed}};
  signal.remedy = "Nothing, where that was meant.";
  log.add(std::move(signal));
}

void Resume::update(const StepContext& context, SignalLog& log) {
  if (!left_) return log.cannot(Check::kResumeMismatch, kNothing);
  last_step_ = context.record.step;
  if (drawn_ || (judged_ && !step_)) return;
  draws_.see(context.record);
  if (draws_.ended() && judged_) judge_draws(log);
}

void Resume::farewell(std::uint32_t /*rank*/, const FinalState& last, const Roster& /*roster*/,
                      SignalLog& log) {
  const auto ended =
      std::ranges::find(last.fingerprints, static_cast<std::uint32_t>(FingerprintKind::kDataEnded),
                        &FingerprintValue::kind);
  const bool whole = ended != last.fingerprints.end() && ended->value == draws_.pass() + 1;
  if (left_ && step_ && !drawn_ && whole) judge_draws(log);
}

void Resume::judge_draws(SignalLog& log) {
  drawn_ = true;
  if (!step_) return;
  const PassDraws& before = left_->draws;
  if (!before.known() || !draws_.known() || before.length() != draws_.length()) {
    return log.cannot(Check::kResumeMismatch, kNoPass);
  }
  std::uint64_t drawn = 0;
  std::uint64_t now = 0;
  SampleSet all = before.before(*step_, drawn);
  const SampleSet since = draws_.before(UINT64_MAX, now);
  if (drawn == 0) return;  // saved between passes
  const std::uint64_t first = all.count();
  const std::uint64_t second = since.count();
  all.unite(since);
  const std::uint64_t again = first + second - all.count();
  const std::uint64_t never = before.length() - all.count();
  const std::uint64_t slack = std::max(before.slack(), draws_.slack());
  if (again <= slack && never <= slack) return;
  const bool anew = never <= slack && again + slack >= first;
  Signal signal = signal_of(5, everyone());
  signal.last_step = last_step_;
  signal.severity = anew ? Severity::kInfo : Severity::kWarning;
  signal.title =
      anew ? fmt::format(
                 "{{Ranks}} began the interrupted pass over the data anew: {} of {} samples "
                 "were drawn again",
                 again, before.length())
           : fmt::format(
                 "{{Ranks}} did not go on where the pass over the data was interrupted: of "
                 "{} samples {} were drawn again, and {} never",
                 before.length(), again, never);
  signal.evidence = {{"samples_again", static_cast<std::int64_t>(again)},
                     {"samples_never", static_cast<std::int64_t>(never)},
                     {"of_samples", static_cast<std::int64_t>(before.length())}};
  signal.remedy =
      "Restore the sampler's seed and epoch, and skip the batches that were trained on before the "
      "checkpoint (`skip_first_batches`, a sampler with a state of its own).";
  log.add(std::move(signal));
}

}  // namespace presum::diagnose
