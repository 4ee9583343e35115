// SPDX-License-Identifier: Apache-2.0
#include "compare/compare.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <utility>

#include "base/try.h"
#include "compare/model.h"
#include "compare/run.h"

namespace presum::compare {
namespace {

constexpr std::array<std::string_view, kStages> kNames = {
    "configuration", "data",           "random-generators", "parameters",
    "loss",          "local-gradient", "reduction",         "final-parameters"};

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
  const auto of_b = read_run(b);
  if (!of_b) return of_b.error();
  Comparison out{.a = a.name(), .b = b.name()};
  for (const auto& [key, segments] : of_a.models) {
    if (!of_b->models.contains(key)) continue;
    PRESUM_ASSIGN(auto model, compare_model(of_a, *of_b, key));
    out.models.push_back(std::move(model.model));
    std::ranges::move(model.facts, std::back_inserter(out.facts));
  }
  list_models_of_one_run(Side::kA, of_a, *of_b, out);
  list_models_of_one_run(Side::kB, *of_b, of_a, out);
  judge(of_a, *of_b, out);
  return out;
}

}  // namespace presum::compare
