// SPDX-License-Identifier: Apache-2.0
#include "compare/compare.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <utility>

#include "base/try.h"
#include "compare/inputs.h"
#include "compare/numbers.h"
#include "compare/parameter_hashes.h"
#include "compare/phase_times.h"
#include "compare/remarks.h"
#include "compare/run.h"
#include "compare/segment_pair.h"
#include "compare/stage_history.h"
#include "compare/step_pair.h"
#include "compare/timeline.h"

namespace presum::compare {
namespace {

constexpr std::array<std::string_view, kStages> kNames = {
    "configuration", "data",           "random-generators", "parameters",      "token-weight",
    "loss",          "local-gradient", "reduction",         "final-parameters"};

std::vector<WorkerPair> pairs_of(const StepRecord& a, const StepRecord& b) {
  std::vector<WorkerPair> out;
  if (a.workers_expected != b.workers_expected) return out;
  for (const WorkerRecord& w : a.workers) {
    const auto other = std::ranges::find(b.workers, w.replica, &WorkerRecord::replica);
    if (other != b.workers.end()) out.emplace_back(&w, &*other);
  }
  return out;
}

// The ranks of a step, without their gradients and inputs.
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

void count(RecordedSteps& steps, const TimelineReader::Step& step) {
  if (steps.steps++ == 0) steps.first_step = step.step;
  steps.last_step = step.step;
  steps.workers = step.record->workers_expected;
}

// The number of a run's optimizer steps after its last recorded step.
std::uint64_t updates_after(const std::vector<FinalStateRecord>& end, const StepRecord& last) {
  if (end.empty() || last.workers.empty()) return 0;
  const auto worker = std::ranges::find(last.workers, end.front().replica, &WorkerRecord::replica);
  const auto& w = worker == last.workers.end() ? last.workers.front() : *worker;
  const std::uint64_t all = end.front().optimizer_steps;
  return all > w.optimizer_step ? all - w.optimizer_step : 0;
}

// Sets the final states as the states of a step.
void give_states(const std::vector<FinalStateRecord>& end, StepRecord& roster) {
  for (WorkerRecord& w : roster.workers) {
    const auto own = std::ranges::find(end, w.replica, &FinalStateRecord::replica);
    if (own != end.end()) w.states = own->states;
  }
}

// Compares one model of two runs: every common step, the parameters after the last one, and the
// conclusions from both.
class ModelComparer {
 public:
  // REQUIRES: both runs have steps of this model.
  ModelComparer(const Run& a, const Run& b, ModelPart key)
      : a_(a), b_(b), key_(key), segments_(a, b, key), history_(model_) {
    model_.model_index = key.first;
    model_.dp_group = key.second;
    for (const Run* run : {&a, &b}) {
      for (const GroupInfo& g : run->groups) {
        if (ModelPart{g.model.model_index, g.model.dp_group} == key) groups_.add(g);
      }
    }
  }
  ModelComparer(const ModelComparer&) = delete;  // history_ refers to model_
  ModelComparer& operator=(const ModelComparer&) = delete;

  Status compare() {
    for (const auto& [run, spans] : {std::pair(&a_, &spans_a_), std::pair(&b_, &spans_b_)}) {
      PRESUM_ASSIGN(auto found, timeline(run->log, key_.first, key_.second, run->models.at(key_)));
      *spans = std::move(found);
    }
    PRESUM_TRY(compare_common_steps());
    if (model_.common_steps > 0) compare_ends();
    history_.finish(segments_, parameter_hashes_.all_after_start());
    model_.times = times_.result();
    add_remarks();
    return {};
  }

  void move_to(Comparison& out) {
    out.models.push_back(std::move(model_));
    std::ranges::move(segments_.take_facts(), std::back_inserter(out.facts));
  }

 private:
  Status compare_common_steps() {
    TimelineReader reader_a(a_.log, spans_a_, key_.first, key_.second);
    TimelineReader reader_b(b_.log, spans_b_, key_.first, key_.second);
    auto a = reader_a.next();
    auto b = reader_b.next();
    while (a && b && (a->record != nullptr || b->record != nullptr)) {
      const bool of_a = a->record != nullptr && (b->record == nullptr || a->step <= b->step);
      const bool of_b = b->record != nullptr && (a->record == nullptr || b->step <= a->step);
      if (of_a) count(model_.a, *a);
      if (of_b) count(model_.b, *b);
      if (of_a && of_b) compare_step(*a, *b);
      if (of_a) a = reader_a.next();
      if (of_b) b = reader_b.next();
    }
    if (!a) return a.error();
    if (!b) return b.error();
    return {};
  }

  void compare_step(const TimelineReader::Step& a, const TimelineReader::Step& b) {
    segments_.enter(a, b);
    StepPair pair{.a = *a.record,
                  .b = *b.record,
                  .step = a.step,
                  .same_salt = segments_.same_salt(),
                  .coverage = hash_coverage(a, segments_.every_a(), b, segments_.every_b()),
                  .groups = groups_,
                  .workers = pairs_of(*a.record, *b.record)};
    parameter_hashes_.match_tensors(pair);
    optimizer_steps_.add(pair, segments_.numbers());
    if (model_.common_steps++ == 0) unseeded_ = unseeded_generators(pair);
    StageResults results = {compare_configuration(pair),
                            compare_data(pair),
                            compare_random_generators(pair, unseeded_),
                            compare_parameters(pair),
                            compare_token_weights(pair),
                            compare_losses(pair),
                            compare_gradients(pair),
                            compare_reduction(pair)};
    parameter_hashes_.record(results[static_cast<std::size_t>(Stage::kParameters)], pair);
    history_.add_step(std::move(results), pair);
    times_.add(pair.a, pair.b);
    last_a_ = roster_of(pair.a);
    last_b_ = roster_of(pair.b);
  }

  // Compares the parameters after the last step, if both runs end at the same step.
  void compare_ends() {
    const auto a = a_.final_states_of(segments_.numbers().first, key_);
    const auto b = b_.final_states_of(segments_.numbers().second, key_);
    const bool same_end = model_.a.last_step == model_.b.last_step &&
                          updates_after(a, last_a_) == updates_after(b, last_b_);
    model_.unrecorded = updates_after(a, last_a_);
    give_states(a, last_a_);
    give_states(b, last_b_);
    const StepPair pair{.a = last_a_,
                        .b = last_b_,
                        .step = *history_.last_step(),
                        .same_salt = segments_.same_salt(),
                        .coverage = {.same_tensors = true, .whole = true},
                        .groups = groups_,
                        .workers = pairs_of(last_a_, last_b_)};
    StageResult result = compare_parameters(pair);
    if (!same_end || result.state != StageResult::State::kCompared) {
      result = not_compared(!a.empty(), !b.empty());
    }
    if (result.difference) {
      result.difference->last_seen =
          parameter_hashes_.last_equal(pair.coverage, *result.difference);
    }
    history_.add_final(result, pair);
  }

  void add_remarks() {
    list_not_compared(history_.uncompared(), model_);
    remark_unseeded(unseeded_, model_);
    remark_random_generators(history_.equal_after_random(), model_);
    optimizer_steps_.remark(model_);
    remark_restarts(Side::kA, spans_a_, model_);
    remark_restarts(Side::kB, spans_b_, model_);
    remark_unclosed(Side::kA, a_.segments, model_);
    remark_unclosed(Side::kB, b_.segments, model_);
  }

  const Run& a_;
  const Run& b_;
  ModelPart key_;
  ModelComparison model_;
  GroupOrder groups_;
  std::vector<SegmentSpan> spans_a_, spans_b_;
  SegmentPair segments_;
  ParameterHashes parameter_hashes_;
  OptimizerSteps optimizer_steps_;
  FingerprintKinds unseeded_;
  StageHistory history_;
  PhaseTimes times_;
  StepRecord last_a_, last_b_;  // the ranks at the last common step
};

// ---- conclusions over all models

void list_models_of_one_run(Side side, const Run& run, const Run& other, Comparison& out) {
  for (const auto& [key, segments] : run.models) {
    if (!other.models.contains(key)) out.not_compared.push_back({key.first, key.second, side});
  }
}

Obstacle obstacle_to(const Run& a, const Run& b, const std::vector<ModelComparison>& models) {
  if (a.models.empty()) return Obstacle::kNoStepInA;
  if (b.models.empty()) return Obstacle::kNoStepInB;
  if (models.empty()) return Obstacle::kNoCommonModel;
  const bool common =
      std::ranges::any_of(models, [](const ModelComparison& m) { return m.common_steps > 0; });
  return common ? Obstacle::kNothingInSteps : Obstacle::kNoCommonStep;
}

void judge(const Run& a, const Run& b, Comparison& out) {
  const auto has_first = [](const ModelComparison& m) { return m.first.has_value(); };
  if (std::ranges::any_of(out.models, has_first)) {
    out.outcome = Outcome::kDifferent;
    return;
  }
  if (std::ranges::any_of(out.models, &ModelComparison::compares_numbers)) {
    out.outcome = Outcome::kIdentical;
    return;
  }
  out.obstacle = obstacle_to(a, b, out.models);
}

}  // namespace

std::string_view to_string(Stage stage) { return kNames[static_cast<std::size_t>(stage)]; }

bool ModelComparison::compares_numbers() const {
  const auto numbers = std::span(stages).subspan(static_cast<std::size_t>(Stage::kParameters));
  return std::ranges::any_of(numbers, [](const StageSummary& s) { return s.compared > 0; });
}

bool ModelComparison::differs_earlier(Stage stage, const std::optional<Stage>& than) const {
  if (!than) return true;
  return std::pair(at(stage).first->step, stage) < std::pair(at(*than).first->step, *than);
}

const ModelComparison* Comparison::first() const {
  const ModelComparison* out = nullptr;
  const auto key = [](const ModelComparison& m) {
    return std::pair(m.at(*m.first).first->step, *m.first);
  };
  for (const ModelComparison& m : models) {
    if (m.first && (out == nullptr || key(m) < key(*out))) out = &m;
  }
  return out;
}

Result<Comparison> compare(const RunLog& a, const RunLog& b) {
  PRESUM_ASSIGN(const auto of_a, read_run(a));
  PRESUM_ASSIGN(const auto of_b, read_run(b));
  Comparison out{.a = a.name(), .b = b.name()};
  for (const auto& [key, segments] : of_a.models) {
    if (!of_b.models.contains(key)) continue;
    ModelComparer comparer(of_a, of_b, key);
    PRESUM_TRY(comparer.compare());
    comparer.move_to(out);
  }
  list_models_of_one_run(Side::kA, of_a, of_b, out);
  list_models_of_one_run(Side::kB, of_b, of_a, out);
  judge(of_a, of_b, out);
  return out;
}

}  // namespace presum::compare
