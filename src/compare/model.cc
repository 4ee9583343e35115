// SPDX-License-Identifier: Apache-2.0
#include "compare/model.h"

#include <algorithm>

#include "base/try.h"
#include "compare/first_difference.h"
#include "compare/inputs.h"
#include "compare/numbers.h"
#include "compare/optimizer_steps.h"
#include "compare/parameter_hashes.h"
#include "compare/phase_times.h"
#include "compare/remarks.h"
#include "compare/segment_pair.h"
#include "compare/stage_history.h"
#include "compare/step_pair.h"
#include "compare/timeline.h"

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

// The workers of a step, without their gradients and inputs.
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

// Optimiser steps of a run after its last recorded step.
std::uint64_t updates_after(const std::vector<FinalStateRecord>& end, const StepRecord& last) {
  if (end.empty() || last.workers.empty()) return 0;
  const auto worker = std::ranges::find(last.workers, end.front().replica, &WorkerRecord::replica);
  const auto& w = worker == last.workers.end() ? last.workers.front() : *worker;
  const std::uint64_t all = end.front().optimizer_steps;
  return all > w.optimizer_step ? all - w.optimizer_step : 0;
}

// Compares one model of two runs: every common step, the parameters after the last one, and what
// both come to.
class ModelComparer {
 public:
  ModelComparer(const Run& a, const Run& b, ModuleShard key)
      : a_(a), b_(b), key_(key), segments_(a, b, key), history_(out_.model) {
    out_.model.module = key.first;
    out_.model.shard = key.second;
    for (const Run* run : {&a, &b}) {
      for (const GroupInfo& g : run->groups) {
        if (ModuleShard{g.model.module, g.model.shard} == key) groups_.add(g);
      }
    }
  }
  ModelComparer(const ModelComparer&) = delete;  // history_ refers to out_
  ModelComparer& operator=(const ModelComparer&) = delete;

  Status compare() {
    for (const auto& [run, spans] : {std::pair(&a_, &spans_a_), std::pair(&b_, &spans_b_)}) {
      PRESUM_ASSIGN(auto found, timeline(run->log, key_.first, key_.second, run->models.at(key_)));
      *spans = std::move(found);
    }
    PRESUM_TRY(compare_common_steps());
    ModelComparison& model = out_.model;
    if (model.common_steps > 0) compare_ends();
    history_.add_facts(segments_);
    out_.facts = segments_.take_facts();
    model.worlds = history_.numbers_of_workers();
    model.other_worlds = history_.only_worlds_differ(parameter_hashes_.all_after_start());
    if (!model.other_worlds) choose_first(model, history_);
    model.times = times_.result();
    add_remarks();
    return {};
  }

  ComparedModel take() { return std::move(out_); }

 private:
  Status compare_common_steps() {
    TimelineReader reader_a(a_.log, spans_a_, key_.first, key_.second);
    TimelineReader reader_b(b_.log, spans_b_, key_.first, key_.second);
    auto a = reader_a.next();
    auto b = reader_b.next();
    while (a && b && (a->record != nullptr || b->record != nullptr)) {
      const bool of_a = a->record != nullptr && (b->record == nullptr || a->step <= b->step);
      const bool of_b = b->record != nullptr && (a->record == nullptr || b->step <= a->step);
      if (of_a) count(out_.model.a, *a);
      if (of_b) count(out_.model.b, *b);
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
    if (out_.model.common_steps++ == 0) unseeded_ = unseeded_generators(pair);
    StageResults results = {compare_configuration(pair),
                            compare_data(pair),
                            compare_random_generators(pair, unseeded_),
                            compare_parameters(pair),
                            compare_losses(pair),
                            compare_gradients(pair),
                            compare_reduction(pair)};
    parameter_hashes_.record(results[static_cast<std::size_t>(Stage::kParameters)], pair);
    history_.add_step(std::move(results), pair);
    times_.add(pair.a, pair.b);
    last_a_ = roster_of(pair.a);
    last_b_ = roster_of(pair.b);
  }

  // Parameters after the last step, where it is the same one.
  void compare_ends() {
    const auto a = a_.final_states_of(segments_.numbers().first, key_);
    const auto b = b_.final_states_of(segments_.numbers().second, key_);
    const bool same_end = out_.model.a.last_step == out_.model.b.last_step &&
                          updates_after(a, last_a_) == updates_after(b, last_b_);
    out_.model.unrecorded = updates_after(a, last_a_);
    const StepPair pair{.a = last_a_,
                        .b = last_b_,
                        .step = *history_.last_step(),
                        .same_salt = segments_.same_salt(),
                        .groups = groups_,
                        .workers = pairs_of(last_a_, last_b_)};
    StageResult result =
        same_end ? compare_final_parameters(pair, a, b) : not_compared(!a.empty(), !b.empty());
    if (result.difference) {
      result.difference->last_seen =
          parameter_hashes_.last_equal({.whole = true}, *result.difference);
    }
    history_.add_final(std::move(result), pair);
  }

  void add_remarks() {
    ModelComparison& model = out_.model;
    list_not_compared(history_.uncompared(), model);
    remark_unseeded(unseeded_, model);
    remark_random_generators(history_.equal_after_random(), model);
    optimizer_steps_.remark(model);
    remark_restarts(Side::kA, spans_a_, model);
    remark_restarts(Side::kB, spans_b_, model);
    remark_unclosed(Side::kA, a_.segments, model);
    remark_unclosed(Side::kB, b_.segments, model);
  }

  const Run& a_;
  const Run& b_;
  ModuleShard key_;
  ComparedModel out_;
  GroupOrder groups_;
  std::vector<SegmentSpan> spans_a_, spans_b_;
  SegmentPair segments_;
  ParameterHashes parameter_hashes_;
  OptimizerSteps optimizer_steps_;
  FingerprintKinds unseeded_;
  StageHistory history_;
  PhaseTimes times_;
  StepRecord last_a_, last_b_;  // the workers of the last common step
};

}  // namespace

Result<ComparedModel> compare_model(const Run& a, const Run& b, ModuleShard key) {
  ModelComparer comparer(a, b, key);
  PRESUM_TRY(comparer.compare());
  return comparer.take();
}

}  // namespace presum::compare
