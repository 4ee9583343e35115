// SPDX-License-Identifier: Apache-2.0
#include "compare/first_difference.h"

namespace presum::compare {

bool differs_earlier(const ModelComparison& model, Stage stage, const std::optional<Stage>& than) {
  if (!than) return true;
  const auto step = model.at(stage).first->step;
  const auto other = model.at(*than).first->step;
  return step < other || (step == other && stage < *than);
}

namespace {

// Since when the first difference is there; none where that is the step at which it was found.
std::optional<Bracket> bracket_of(const ModelComparison& model) {
  if (!model.any_before) return std::nullopt;
  const std::uint64_t last = *model.first == Stage::kFinal ? 1 + model.unrecorded : 0;
  const std::uint64_t end = model.at(*model.first).first->step + last;
  if (!model.last_identical) return Bracket{.end = end};
  const std::uint64_t since = *model.last_identical + 1;
  return since < end ? std::optional(Bracket{since, end}) : std::nullopt;
}

}  // namespace

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
  model.bracket = bracket_of(model);
}

}  // namespace presum::compare
