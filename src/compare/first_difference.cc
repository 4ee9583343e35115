// SPDX-License-Identifier: Apache-2.0
#include "compare/first_difference.h"

namespace presum::compare {

bool differs_earlier(const ModelComparison& model, Stage stage, const std::optional<Stage>& than) {
  if (!than) return true;
  const auto step = model.at(stage).first->step;
  const auto other = model.at(*than).first->step;
  return step < other || (step == other && stage < *than);
}

UpdateRange update_range(const ModelComparison& model, const StageHistory& history, Stage stage) {
  const auto& context = history.context_of(stage);
  const auto dated = dated_after(model, stage);
  const auto equal_before = history.equal_before(stage);
  if ((stage == Stage::kParameters || stage == Stage::kFinal) && !equal_before) return {};
  UpdateRange out{.first = dated ? dated : equal_before, .dated = dated.has_value()};
  if (!out.first) return out;
  const bool last = stage == Stage::kFinal;
  out.end = model.at(stage).first->step + (last ? 1 + model.unrecorded : 0);
  out.reduced = context.reduced.covers(*out.first, out.end);
  out.gradients = context.gradients.covers(*out.first, out.end);
  return out;
}

void choose_first(ModelComparison& model, const StageHistory& history) {
  for (std::size_t s = 0; s < kStages; ++s) {
    const auto stage = static_cast<Stage>(s);
    if (!model.at(stage).first || stage == Stage::kRandom) continue;
    if (differs_earlier(model, stage, model.first)) model.first = stage;
    if (stage >= Stage::kParameters && differs_earlier(model, stage, model.first_number)) {
      model.first_number = stage;
    }
  }
  if (!model.first) return;
  const auto& equal_after_random = history.equal_after_random();
  const bool without_effect =
      equal_after_random && *equal_after_random <= model.at(*model.first).first->step;
  if (model.at(Stage::kRandom).first && !without_effect &&
      differs_earlier(model, Stage::kRandom, model.first)) {
    model.first = Stage::kRandom;
  }
  const auto& context = history.context_of(*model.first);
  model.unseen = context.unseen;
  model.any_before = context.previous.has_value();
  model.last_identical = history.equal_before(*model.first);
  model.dated_after = dated_after(model, *model.first);
  model.reduced_equal_before = update_range(model, history, *model.first).reduced;
  model.positions_only = context.positions_only;
}

}  // namespace presum::compare
