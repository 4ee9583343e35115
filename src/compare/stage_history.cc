// SPDX-License-Identifier: Apache-2.0
#include "compare/stage_history.h"

#include <algorithm>

namespace presum::compare {
namespace {

using State = StageResult::State;

std::size_t index_of(Stage stage) { return static_cast<std::size_t>(stage); }

bool compared(const StageResult& result) { return result.state == State::kCompared; }

bool equal(const StageResult& result) { return compared(result) && !result.difference; }

bool skips_gradients(const StepPair& pair) {
  return std::ranges::any_of(pair.workers, [](const WorkerPair& w) {
    return w.first->skipped_parameters > 0 || w.second->skipped_parameters > 0;
  });
}

// Stages compared rank by rank have no pairs if the world sizes differ.
void name_world(StageResult& result, Stage stage) {
  const bool single = stage == Stage::kRandom || stage == Stage::kTokenWeight ||
                      stage == Stage::kLoss || stage == Stage::kGradient;
  if (single && result.state == State::kNotComparable) result.state = State::kOtherWorkerCounts;
}

}  // namespace

void StageHistory::add_step(StageResults results, const StepPair& pair) {
  uncompared_.skipping += skips_gradients(pair);
  uncompared_.lacking += !pair.complete();
  uncompared_.same_salt = pair.same_salt;
  note_worlds(results.front(), pair);
  std::vector<Stage> unseen;
  for (std::size_t s = 0; s < results.size(); ++s) {
    const auto stage = static_cast<Stage>(s);
    const bool first = results[s].difference && !model_.at(stage).first;
    if (first) contexts_[s] = {unseen, previous_};
    note_equal(stage, results[s], pair);
    if (!compared(results[s])) unseen.push_back(stage);
    if (!pair.same_world()) name_world(results[s], stage);
    add(stage, results[s], pair.step);
  }
  note_outcome(results, pair);
  previous_ = pair.step;
}

void StageHistory::add_final(const StageResult& result, const StepPair& last) {
  if (result.difference) contexts_[index_of(Stage::kFinal)] = {{}, previous_};
  add(Stage::kFinal, result, last.step);
}

void StageHistory::add(Stage stage, const StageResult& result, std::uint64_t step) {
  uncompared_.count(stage, result.state);
  if (!compared(result)) return;
  StageSummary& summary = model_.at(stage);
  ++summary.compared;
  if (!result.difference) {
    if (!summary.first) summary.last_equal = step;
    return;
  }
  ++summary.differing;
  if (!summary.first) summary.first = result.difference;
}

// Finds when the ranks that differ were last equal.
void StageHistory::note_equal(Stage stage, StageResult& result, const StepPair& pair) {
  if (stage < Stage::kTokenWeight) return;
  LastEqualByRank& last = equal_[index_of(stage)];
  if (result.difference) result.difference->last_seen = last.of(result.difference->ranks);
  if (!pair.same_world() && result.difference) return;
  last.equal(pair.step, result.equal);
}

void StageHistory::note_worlds(const StageResult& configuration, const StepPair& pair) {
  if (!pair.same_world()) {
    ++model_.world_steps;
    worlds_.emplace(pair.a.workers_expected, pair.b.workers_expected);
  }
  const auto& found = configuration.difference;
  if (!found) return;
  const auto& settings = std::get<OtherSettings>(found->what);
  settings_differ_ = settings_differ_ || !settings.workers || !settings.kinds.empty();
}

void StageHistory::note_outcome(const StageResults& results, const StepPair& pair) {
  const StageResult& loss = results[index_of(Stage::kLoss)];
  const StageResult& gradient = results[index_of(Stage::kGradient)];
  uncompared_.positions += !pair.same_salt && compared(results[index_of(Stage::kData)]);
  const bool as_before = equal(loss) || (equal(gradient) && !loss.difference);
  const bool drawn_otherwise = model_.at(Stage::kRandom).first.has_value();
  if (drawn_otherwise && as_before && !equal_after_random_) equal_after_random_ = pair.step;
}

void StageHistory::finish(const SegmentPair& segments, bool hashed) {
  add_facts(segments);
  for (const auto& [of_a, of_b] : worlds_) model_.worlds.push_back({of_a, of_b});
  model_.other_worlds = only_worlds_differ(hashed);
  if (!model_.other_worlds) choose_first();
}

void StageHistory::add_facts(const SegmentPair& segments) {
  const auto& since = segments.defining_since();
  facts_differ_ = since.has_value();
  if (!since) return;
  StageSummary& summary = model_.at(Stage::kConfiguration);
  if (!summary.first || summary.first->step > *since) {
    summary.first.emplace();
    summary.first->step = *since;
    // The last common step before the one at which the new pair of segments begins.
    summary.last_equal = model_.at(Stage::kGradient).last_equal;
    if (summary.last_equal >= *since) summary.last_equal.reset();
    contexts_[index_of(Stage::kConfiguration)].previous = summary.last_equal;
  }
  summary.differing = std::max(summary.differing, segments.defining_steps());
  summary.compared = std::max(summary.compared, model_.common_steps);
  segments.add_defining_facts(*summary.first);
}

// Requires that the results of updates were compared: all parameters, or a reduced gradient after
// step 0.
bool StageHistory::only_worlds_differ(bool hashed) const {
  if (worlds_.empty() || settings_differ_ || facts_differ_) return false;
  for (std::size_t s = index_of(Stage::kData); s < kStages; ++s) {
    if (model_.stages[s].first && static_cast<Stage>(s) != Stage::kRandom) return false;
  }
  return model_.at(Stage::kFinal).compared > 0 || hashed ||
         model_.at(Stage::kReduction).last_equal > 0;
}

// A difference of random generators alone does not make runs different, because nothing may have
// been drawn from them. It does not count either if a later step is equal all the same.
void StageHistory::choose_first() {
  for (std::size_t s = 0; s < kStages; ++s) {
    const auto stage = static_cast<Stage>(s);
    if (!model_.at(stage).first || stage == Stage::kRandom) continue;
    if (model_.differs_earlier(stage, model_.first)) model_.first = stage;
    if (stage >= Stage::kParameters && model_.differs_earlier(stage, model_.first_number)) {
      model_.first_number = stage;
    }
  }
  if (!model_.first) return;
  const bool without_effect =
      equal_after_random_ && *equal_after_random_ <= model_.at(*model_.first).first->step;
  if (model_.at(Stage::kRandom).first && !without_effect &&
      model_.differs_earlier(Stage::kRandom, model_.first)) {
    model_.first = Stage::kRandom;
  }
  const Context& context = contexts_[index_of(*model_.first)];
  model_.unseen = context.unseen;
  model_.any_before = context.previous.has_value();
  model_.last_identical = context.previous;
  if (*model_.first >= Stage::kParameters) {
    const auto& seen = model_.at(*model_.first).first->last_seen;
    model_.last_identical = std::min(context.previous, seen);
  }
  model_.bracket = bracket();
}

// The steps in which the first difference may have begun; empty if it began at the step at which it
// was found.
std::optional<Bracket> StageHistory::bracket() const {
  if (!model_.any_before) return std::nullopt;
  const std::uint64_t last = *model_.first == Stage::kFinal ? 1 + model_.unrecorded : 0;
  const std::uint64_t end = model_.at(*model_.first).first->step + last;
  if (!model_.last_identical) return Bracket{.end = end};
  const std::uint64_t since = *model_.last_identical + 1;
  return since < end ? std::optional(Bracket{since, end}) : std::nullopt;
}

}  // namespace presum::compare
