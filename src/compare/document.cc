// SPDX-License-Identifier: Apache-2.0
#include "compare/document.h"

#include <array>
#include <cmath>

#include "compare/wording.h"

namespace presum::compare {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array kOutcomes = {"identical", "different", "not-comparable"};
constexpr std::array kWeights = {"configuration", "environment", "recording"};

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json name(const std::optional<Stage>& stage) { return stage ? Json(to_string(*stage)) : Json(); }

Json difference_json(const Difference& d) {
  Json evidence = Json::array();
  for (const Evidence& e : d.evidence)
    evidence.push_back({{"ranks", e.ranks}, {"text", evidence_text(e)}});
  return {{"step", d.step},
          {"ranks", d.ranks},
          {"all_ranks", d.all_ranks},
          {"what", what_text(d)},
          {"layers", d.layers},
          {"evidence", evidence},
          {"last_seen", or_null(d.last_seen)}};
}

Json stage_json(Stage stage, const StageSummary& s) {
  return {{"stage", to_string(stage)},
          {"compared", s.compared},
          {"differing", s.differing},
          {"last_equal", or_null(s.last_equal)},
          {"first", s.first ? difference_json(*s.first) : Json()}};
}

Json side_json(const RecordedSteps& side) {
  return {{"steps", side.steps},
          {"first_step", side.first_step},
          {"last_step", side.last_step},
          {"workers", side.workers}};
}

Json or_null(double value) { return std::isfinite(value) ? Json(value) : Json(); }

Json time_json(const TimeDifference& d) {
  return {{"a", or_null(d.a)},
          {"b", or_null(d.b)},
          {"difference", or_null(d.b - d.a)},
          {"low", or_null(d.low)},
          {"high", or_null(d.high)}};
}

Json times_json(const ModelComparison& m) {
  if (!m.times) return {};
  Json phases = Json::object();
  for (std::size_t p = 0; p < kPhaseCount; ++p) {
    phases[to_string(static_cast<Phase>(p))] = time_json(m.times->phases[p]);
  }
  return {{"steps", m.times->steps},
          {"text", times_text(m)},
          {"own", time_json(m.times->own)},
          {"phases", phases}};
}

Json model_json(const ModelComparison& m) {
  Json stages = Json::array();
  Json unseen = Json::array();
  for (std::size_t s = 0; s < kStages; ++s) {
    stages.push_back(stage_json(static_cast<Stage>(s), m.stages[s]));
  }
  for (const Stage stage : m.unseen) unseen.push_back(to_string(stage));
  return {{"model_index", m.model_index},
          {"dp_group", m.dp_group},
          {"a", side_json(m.a)},
          {"b", side_json(m.b)},
          {"common_steps", m.common_steps},
          {"first_stage", name(m.first)},
          {"first_step", m.first ? Json(m.at(*m.first).first->step) : Json()},
          {"first_number", name(m.first_number)},
          {"last_identical", or_null(m.last_identical)},
          {"bracket", bracket_text(m)},
          {"other_worlds", m.other_worlds},
          {"unseen", unseen},
          {"between", between_text(m)},
          {"stages", stages},
          {"remarks", remark_texts(m)},
          {"not_compared", not_compared_texts(m)},
          {"times", times_json(m)}};
}

Json fact_json(const FactDifference& f) {
  return {{"model_index", f.model_index},
          {"key", f.key},
          {"weight", kWeights[static_cast<std::size_t>(f.weight)]},
          {"a", fact_text(f.a)},
          {"b", fact_text(f.b)},
          {"ranks", f.ranks},
          {"all_ranks", f.all_ranks},
          {"since", f.since}};
}

}  // namespace

Json document(const Comparison& comparison) {
  Json models = Json::array();
  Json facts = Json::array();
  for (const ModelComparison& m : comparison.models) models.push_back(model_json(m));
  for (const FactDifference& f : comparison.facts) facts.push_back(fact_json(f));
  return {{"outcome", kOutcomes[static_cast<std::size_t>(comparison.outcome)]},
          {"reason", obstacle_text(comparison)},
          {"agreement", agreement_text(comparison)},
          {"a", comparison.a},
          {"b", comparison.b},
          {"models", models},
          {"facts", facts},
          {"not_compared", not_compared_texts(comparison)}};
}

}  // namespace presum::compare
