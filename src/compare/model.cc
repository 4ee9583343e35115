// SPDX-License-Identifier: Apache-2.0
#include "compare/model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

#include "base/try.h"
#include "compare/facts.h"
#include "compare/hashes.h"
#include "compare/inputs.h"
#include "compare/numbers.h"
#include "compare/origin.h"
#include "compare/pair.h"
#include "compare/remarks.h"
#include "compare/timeline.h"
#include "compare/updates.h"

namespace presum::compare {
namespace {

std::vector<WorkerPair> pairs_of(const StepRecord& a, const StepRecord& b) {
  std::vector<WorkerPair> out;
  if (a.workers_expected != b.workers_expected) return out;
  for (const WorkerRecord& w : a.workers) {
    const auto other = std::ranges::find(b.workers, w.replica, &WorkerRecord::replica);
    if (other != b.workers.end()) out.emplace_back(&w, &*other);
  }
  return out;
}

// Who was there, without what they brought.
StepRecord roster_of(const StepRecord& step) {
  StepRecord out;
  out.workers_expected = step.workers_expected;
  for (const WorkerRecord& w : step.workers) {
    WorkerRecord& known = out.workers.emplace_back();
    known.rank = w.rank;
    known.replica = w.replica;
    known.optimizer_step = w.optimizer_step;
  }
  return out;
}

// Whether the step itself says what the optimiser's hyper-parameters are.
bool tells_settings(const StepRecord& step) {
  return std::ranges::any_of(step.workers, [](const WorkerRecord& w) {
    return w.fingerprint_of(FingerprintKind::kOptimizerSettings) != nullptr;
  });
}

bool skips_gradients(const StepPair& pair) {
  return std::ranges::any_of(pair.workers, [](const WorkerPair& w) {
    return w.first->skipped_parameters > 0 || w.second->skipped_parameters > 0;
  });
}

bool equal(const Looked& looked) {
  return looked.state == Looked::State::kCompared && !looked.difference;
}

class Model {
 public:
  Model(const Run& a, const Run& b, ModuleShard key) : a_(a), b_(b), key_(key) {
    out_.model.module = key.first;
    out_.model.shard = key.second;
    for (const Run* run : {&a, &b}) {
      for (const GroupInfo& g : run->groups) {
        if (ModuleShard{g.model.module, g.model.shard} == key) layers_.add(g);
      }
    }
  }

  Status run() {
    for (const auto& [run, pieces] : {std::pair(&a_, &pieces_a_), std::pair(&b_, &pieces_b_)}) {
      PRESUM_ASSIGN(auto found, timeline(run->log, key_.first, key_.second, run->models.at(key_)));
      *pieces = std::move(found);
    }
    PRESUM_TRY(walk());
    if (out_.model.common_steps > 0) look_at_ends();
    count_facts();
    choose_first();
    say_rest();
    return {};
  }

  ComparedModel take() { return std::move(out_); }

 private:
  static void count(Side& side, const Walk::At& at) {
    if (side.steps++ == 0) side.first_step = at.step;
    side.last_step = at.step;
    side.workers = at.record->workers_expected;
  }

  Status walk() {
    Walk walk_a(a_.log, pieces_a_, key_.first, key_.second);
    Walk walk_b(b_.log, pieces_b_, key_.first, key_.second);
    auto a = walk_a.next();
    auto b = walk_b.next();
    while (a && b && (a->record != nullptr || b->record != nullptr)) {
      const bool of_a = a->record != nullptr && (b->record == nullptr || a->step <= b->step);
      const bool of_b = b->record != nullptr && (a->record == nullptr || b->step <= a->step);
      if (of_a) count(out_.model.a, *a);
      if (of_b) count(out_.model.b, *b);
      if (of_a && of_b) look(*a, *b);
      if (of_a) a = walk_a.next();
      if (of_b) b = walk_b.next();
    }
    if (!a) return a.error();
    if (!b) return b.error();
    return {};
  }

  void look(const Walk::At& a, const Walk::At& b) {
    meet(a, b);
    StepPair pair{.a = *a.record,
                  .b = *b.record,
                  .step = a.step,
                  .same_salt = same_salt_,
                  .hashed = hashed_of(a, every_a_, b, every_b_),
                  .layers = layers_,
                  .workers = pairs_of(*a.record, *b.record)};
    hashes_.number(pair);
    updates_.look(pair, *meeting_);
    rest_.skipping += skips_gradients(pair);
    rest_.lacking += !pair.complete();
    defined_otherwise_ += defining_since_.has_value();
    if (out_.model.common_steps++ == 0) unseeded_ = unseeded_generators(pair);
    add_all({look_at_configuration(pair), look_at_data(pair), look_at_random(pair, unseeded_),
             look_at_parameters(pair), look_at_losses(pair), look_at_gradients(pair),
             look_at_reduction(pair)},
            pair);
    previous_ = pair.step;
    last_a_ = roster_of(pair.a);
    last_b_ = roster_of(pair.b);
  }

  // Where two segments meet.
  void meet(const Walk::At& a, const Walk::At& b) {
    const std::pair segments(a.piece->segment, b.piece->segment);
    if (segments == meeting_) return;
    meeting_ = segments;
    every_a_ = a_.every(segments.first, key_.first);
    every_b_ = b_.every(segments.second, key_.first);
    const auto salt = a_.salt(segments.first);
    same_salt_ = !salt.empty() && salt == b_.salt(segments.second);
    for (FactDifference& f : differing_facts(
             a_.facts_of(segments.first, key_.first), b_.facts_of(segments.second, key_.first),
             a.record->workers_expected == b.record->workers_expected)) {
      // It is of the step at which the segment began, and a schedule may change it.
      const bool passed = f.key.starts_with("optimizer.") && a.piece->begin != b.piece->begin;
      if (passed && tells_settings(*a.record) && tells_settings(*b.record)) continue;
      if (passed) f.weight = FactDifference::Weight::kEnvironment;
      f.module = key_.first;
      const bool world =
          f.key == "world_size" && a.record->workers_expected != b.record->workers_expected;
      add_fact(std::move(f), a.step, world);
    }
  }

  // `world`: it says what the numbers of workers say already.
  void add_fact(FactDifference fact, std::uint64_t step, bool world) {
    const bool defining = fact.weight == FactDifference::Weight::kDefining && !world;
    if (defining) defining_since_ = std::min(defining_since_.value_or(step), step);
    fact.since = step;
    const auto known = std::ranges::find_if(out_.facts, [&](const FactDifference& f) {
      return f.key == fact.key && f.a == fact.a && f.b == fact.b;
    });
    if (known == out_.facts.end()) {
      out_.facts.push_back(std::move(fact));
    } else if (defining && known->weight != FactDifference::Weight::kDefining) {
      *known = std::move(fact);
    }
  }

  void add_all(std::array<Looked, kStages - 1> looked, const StepPair& pair) {
    const std::uint64_t step = pair.step;
    hashes_.note(looked[static_cast<std::size_t>(Stage::kParameters)], pair, layers_);
    note_worlds(looked.front(), pair);
    std::vector<Stage> unseen;
    for (std::size_t s = 0; s < looked.size(); ++s) {
      const auto stage = static_cast<Stage>(s);
      const bool first = looked[s].difference && !out_.model.at(stage).first;
      if (first) contexts_[s] = {unseen, previous_, !same_salt_, reduced_, gradients_};
      note_equal(stage, looked[s], pair);
      if (looked[s].state != Looked::State::kCompared) unseen.push_back(stage);
      if (!pair.same_world()) name_world(looked[s], stage);
      add(stage, looked[s], step);
    }
    note_whole(looked, pair);
    note_outcome(looked, step);
    const auto compared = [&](Stage stage) {
      return looked[static_cast<std::size_t>(stage)].state == Looked::State::kCompared;
    };
    const bool all = pair.complete() && !skips_gradients(pair);
    reduced_.add(step, all && compared(Stage::kReduction));
    gradients_.add(step, all && compared(Stage::kGradient));
  }

  // What is of single workers has no pairs where their numbers differ.
  static void name_world(Looked& looked, Stage stage) {
    const bool single =
        stage == Stage::kRandom || stage == Stage::kLoss || stage == Stage::kGradient;
    if (single && looked.state == Looked::State::kNotAlike) {
      looked.state = Looked::State::kOtherWorlds;
    }
  }

  // When the workers that differ were last equal.
  void note_equal(Stage stage, Looked& looked, const StepPair& pair) {
    if (stage < Stage::kLoss) return;
    LastEqual& equal = equal_[static_cast<std::size_t>(stage)];
    if (looked.difference) looked.difference->last_seen = equal.of(looked.difference->ranks);
    if (!pair.same_world() && looked.difference) return;
    equal.equal(pair.step, looked.equal);
  }

  // The last steps at which every loss and every gradient was compared and equal.
  void note_whole(const std::array<Looked, kStages - 1>& looked, const StepPair& pair) {
    for (const Stage stage : {Stage::kLoss, Stage::kGradient}) {
      const Looked& at = looked[static_cast<std::size_t>(stage)];
      const bool all = at.equal.size() == pair.a.workers_expected && pair.complete() &&
                       (stage == Stage::kLoss || !skips_gradients(pair));
      StageSummary& summary = out_.model.at(stage);
      if (all && !summary.first) summary.last_whole = pair.step;
    }
  }

  void note_worlds(const Looked& configuration, const StepPair& pair) {
    if (!pair.same_world()) {
      ++out_.model.world_steps;
      worlds_.emplace(pair.a.workers_expected, pair.b.workers_expected);
    }
    const auto& found = configuration.difference;
    const bool number = !pair.same_world() && found && found->what == kNumberOfWorkers;
    set_otherwise_ = set_otherwise_ || (found && !number);
  }

  void note_outcome(const std::array<Looked, kStages - 1>& looked, std::uint64_t step) {
    const auto of = [&](Stage stage) -> const Looked& {
      return looked[static_cast<std::size_t>(stage)];
    };
    rest_.positions += !same_salt_ && of(Stage::kData).state == Looked::State::kCompared;
    const bool as_before =
        equal(of(Stage::kLoss)) || (equal(of(Stage::kGradient)) && !of(Stage::kLoss).difference);
    const bool drawn_otherwise = out_.model.at(Stage::kRandom).first.has_value();
    if (drawn_otherwise && as_before && !equal_after_random_) equal_after_random_ = step;
  }

  void add(Stage stage, const Looked& looked, std::uint64_t step) {
    rest_.count(stage, looked.state);
    if (looked.state != Looked::State::kCompared) return;
    StageSummary& summary = out_.model.at(stage);
    ++summary.compared;
    if (!looked.difference) {
      if (!summary.first) summary.last_equal = step;
      return;
    }
    ++summary.differing;
    if (!summary.first) summary.first = looked.difference;
  }

  // Parameters after the last step, where it is the same one.
  void look_at_ends() {
    const auto a = a_.final_states_of(meeting_->first, key_);
    const auto b = b_.final_states_of(meeting_->second, key_);
    const bool same_end = out_.model.a.last_step == out_.model.b.last_step &&
                          updates_after(a, last_a_) == updates_after(b, last_b_);
    out_.model.unrecorded = updates_after(a, last_a_);
    const StepPair pair{.a = last_a_,
                        .b = last_b_,
                        .step = *previous_,
                        .layers = layers_,
                        .workers = pairs_of(last_a_, last_b_)};
    Looked looked = same_end ? look_at_final(pair, a, b) : not_compared(!a.empty(), !b.empty());
    if (looked.difference) {
      looked.difference->last_seen = hashes_.seen_before({.whole = true}, *looked.difference);
      contexts_[static_cast<std::size_t>(Stage::kFinal)] = {
          {}, previous_, !same_salt_, reduced_, gradients_};
    }
    add(Stage::kFinal, looked, pair.step);
  }

  // Optimiser steps of a run after its last recorded step.
  static std::uint64_t updates_after(const std::vector<FinalStateRecord>& end,
                                     const StepRecord& last) {
    if (end.empty() || last.workers.empty()) return 0;
    const auto worker =
        std::ranges::find(last.workers, end.front().replica, &WorkerRecord::replica);
    const auto& w = worker == last.workers.end() ? last.workers.front() : *worker;
    const std::uint64_t all = end.front().optimizer_steps;
    return all > w.optimizer_step ? all - w.optimizer_step : 0;
  }

  // Facts that define the training count as settings, from the step on where the segments meet.
  void count_facts() {
    if (!defining_since_) return;
    StageSummary& summary = out_.model.at(Stage::kConfiguration);
    if (!summary.first || summary.first->step > *defining_since_) {
      summary.first.emplace();
      summary.first->step = *defining_since_;
      contexts_[static_cast<std::size_t>(Stage::kConfiguration)].previous =
          before(*defining_since_);
      summary.last_equal = before(*defining_since_);
    }
    summary.differing = std::max(summary.differing, defined_otherwise_);
    summary.compared = std::max(summary.compared, out_.model.common_steps);
    add_facts(*summary.first);
  }

  // Those that differ at the step already.
  void add_facts(Difference& first) const {
    std::vector<std::string> names;
    std::vector<Evidence> evidence;
    for (const FactDifference& f : out_.facts) {
      if (f.weight != FactDifference::Weight::kDefining || f.since > first.step) continue;
      names.push_back(f.key);
      evidence.push_back({f.ranks, fmt::format("{}: {} in A, {} in B", f.key, f.a, f.b)});
    }
    if (!first.what.empty()) names.push_back(first.what);
    first.what = fmt::format("{}", fmt::join(names, ", "));
    std::ranges::move(evidence, std::back_inserter(first.evidence));
    first.evidence.resize(std::min(first.evidence.size(), kEvidenceMax));
  }

  // The last common step before one at which segments meet.
  std::optional<std::uint64_t> before(std::uint64_t step) const {
    const auto& last = out_.model.at(Stage::kGradient).last_equal;
    return last && *last < step ? last : std::nullopt;
  }

  // Random generators alone are no difference of the runs: nothing may have been drawn from them.
  // Neither are they one if a step came out equal all the same.
  void choose_first() {
    ModelComparison& m = out_.model;
    for (const auto& [of_a, of_b] : worlds_) {
      m.worlds += fmt::format("{}{} and {}", m.worlds.empty() ? "" : ", ", of_a, of_b);
    }
    m.other_worlds = only_worlds_differ();
    if (m.other_worlds) return;
    for (std::size_t s = 0; s < kStages; ++s) {
      const auto stage = static_cast<Stage>(s);
      if (!m.at(stage).first || stage == Stage::kRandom) continue;
      if (earlier(stage, m.first)) m.first = stage;
      if (stage >= Stage::kParameters && earlier(stage, m.first_number)) m.first_number = stage;
    }
    const bool random = m.first && m.at(Stage::kRandom).first;
    const bool without_effect =
        random && equal_after_random_ && *equal_after_random_ <= m.at(*m.first).first->step;
    if (random && !without_effect && earlier(Stage::kRandom, m.first)) m.first = Stage::kRandom;
    if (!m.first) return;
    const auto& context = contexts_[static_cast<std::size_t>(*m.first)];
    m.unseen = context.unseen;
    m.any_before = context.previous.has_value();
    m.last_identical = equal_before(*m.first);
    m.dated_after = dated_after(m, *m.first);
    m.reduced_between = between(*m.first).reduced;
    m.positions_only = context.positions_only;
  }

  // Whether the numbers of workers are all that differs, and what updates came to was compared: all
  // parameters, or a sum after them.
  bool only_worlds_differ() const {
    const ModelComparison& m = out_.model;
    if (worlds_.empty() || set_otherwise_ || defining_since_) return false;
    for (std::size_t s = static_cast<std::size_t>(Stage::kData); s < kStages; ++s) {
      if (m.stages[s].first && static_cast<Stage>(s) != Stage::kRandom) return false;
    }
    return m.at(Stage::kFinal).compared > 0 || hashes_.all_after_start() ||
           m.at(Stage::kReduction).last_equal > 0;
  }

  // The step after which a stage's first difference began.
  std::optional<std::uint64_t> equal_before(Stage stage) const {
    const auto previous = contexts_[static_cast<std::size_t>(stage)].previous;
    if (stage < Stage::kParameters) return previous;
    return std::min(previous, out_.model.at(stage).first->last_seen);
  }

  // What is known of the steps whose updates may have brought a difference about.
  Between between(Stage stage) const {
    const auto& context = contexts_[static_cast<std::size_t>(stage)];
    const auto dated = dated_after(out_.model, stage);
    if ((stage == Stage::kParameters || stage == Stage::kFinal) && !equal_before(stage)) return {};
    Between out{.first = dated ? dated : equal_before(stage), .dated = dated.has_value()};
    if (!out.first) return out;
    const bool last = stage == Stage::kFinal;
    out.end = out_.model.at(stage).first->step + (last ? 1 + out_.model.unrecorded : 0);
    out.reduced = context.reduced.covers(*out.first, out.end);
    out.gradients = context.gradients.covers(*out.first, out.end);
    return out;
  }

  // Stages are asked in their order, so that of two at the same step the first one counts.
  bool earlier(Stage stage, const std::optional<Stage>& than) const {
    if (!than) return true;
    const auto step = out_.model.at(stage).first->step;
    const auto other = out_.model.at(*than).first->step;
    return step < other || (step == other && stage < *than);
  }

  void say_rest() {
    ModelComparison& m = out_.model;
    rest_.same_salt = same_salt_;
    say_not_compared(rest_, m);
    if (!unseeded_.empty()) {
      std::vector<std::string_view> names;
      for (const std::uint32_t kind : unseeded_) names.push_back(find_fingerprint_kind(kind)->name);
      m.remarks.push_back(fmt::format(
          "{} differ from the first common step on and are left out: they were not seeded, and "
          "torch does not draw from them",
          fmt::join(names, ", ")));
    }
    if (!m.first && m.at(Stage::kRandom).first) {
      const Difference& d = *m.at(Stage::kRandom).first;
      m.remarks.push_back(
          fmt::format("{} differ from step {} on, and nothing that was compared follows from it",
                      d.what, d.step));
    }
    if (m.first && equal_after_random_ && earlier(Stage::kRandom, m.first)) {
      m.remarks.push_back(fmt::format("{} differ from step {} on, but step {} came out equal",
                                      m.at(Stage::kRandom).first->what,
                                      m.at(Stage::kRandom).first->step, *equal_after_random_));
    }
    updates_.say(m);
    say_restarts("A", pieces_a_, m);
    say_restarts("B", pieces_b_, m);
    say_unclosed("A", a_.segments, m);
    say_unclosed("B", b_.segments, m);
    m.computed = computed_of(m);
    m.bracket = bracket_of(m);
    m.dated = dated_of(m);
    m.origin = origin_of(m);
    if (m.first_number)
      m.cause = cause_of(m, out_.facts, between(*m.first_number), updates_.first());
  }

  struct Context {
    std::vector<Stage> unseen;  // not compared at the step
    std::optional<std::uint64_t> previous;
    bool positions_only = false;  // of the step's samples, at most
    Unbroken reduced;             // gradients that were compared before
    Unbroken gradients;
  };

  const Run& a_;
  const Run& b_;
  ModuleShard key_;
  ComparedModel out_;
  Layers layers_;
  std::vector<Piece> pieces_a_, pieces_b_;
  std::optional<Updates::Segments> meeting_;  // none: no common step so far
  std::uint64_t every_a_ = 0, every_b_ = 0;
  bool same_salt_ = false;
  KindSet unseeded_;
  std::optional<std::uint64_t> defining_since_;  // facts that define the training differ
  std::uint64_t defined_otherwise_ = 0;          // steps at which they do
  std::optional<std::uint64_t> previous_;        // common step
  Hashes hashes_;
  Updates updates_;
  std::array<LastEqual, kStages> equal_;
  Unbroken reduced_, gradients_;
  std::set<std::pair<std::uint32_t, std::uint32_t>> worlds_;  // numbers of workers that differ
  bool set_otherwise_ = false;                                // a setting does
  std::optional<std::uint64_t> equal_after_random_;  // the first equal step, generators or not
  StepRecord last_a_, last_b_;
  std::array<Context, kStages> contexts_;
  Rest rest_;
};

}  // namespace

Result<ComparedModel> compare_model(const Run& a, const Run& b, ModuleShard key) {
  Model model(a, b, key);
  PRESUM_TRY(model.run());
  return model.take();
}

}  // namespace presum::compare
