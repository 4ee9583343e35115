// SPDX-License-Identifier: Apache-2.0
#include "judge/coverage.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>

#include "checks/engine/check.h"
#include "detect/detector.h"
#include "judge/continuations.h"

namespace presum::judge {
namespace {

constexpr std::uint64_t kStepsForAVerdict = 5;

struct Workers {
  std::uint64_t expected = 0;
  std::uint64_t seen = 0;
};

// The shards of a model are trained by different ranks; the models of a process by the same ranks.
Workers most_workers(std::span<const ModelSteps> models) {
  Workers most;
  Workers group;
  for (std::size_t i = 0; i < models.size(); ++i) {
    const ModelKey& key = models[i].model();
    const bool same = i > 0 && models[i - 1].model().segment == key.segment &&
                      models[i - 1].model().model_index == key.model_index;
    if (!same) group = {};
    group.expected += models[i].workers_expected();
    group.seen += models[i].workers_seen();
    if (group.expected > most.expected) most = group;
  }
  return most;
}

using ModelPart = std::pair<std::uint32_t, std::uint32_t>;

// In the last segment, and in those whose detectors it continues.
void watch_least(std::span<const ModelSteps> models, std::span<const Continuation> continuations,
                 Coverage& out) {
  struct Watched {
    std::uint64_t steps = 0;
    std::uint64_t workers = 0;
    std::uint32_t since = 0;
  };
  std::map<ModelPart, Watched> watched;
  for (const ModelSteps& m : models) {
    if (m.workers_seen() < 2) continue;
    Watched& w = watched[{m.model().model_index, m.model().dp_group}];
    const auto how = std::ranges::find(continuations, m.model(), &Continuation::model);
    const std::uint64_t before = how == continuations.end() ? 0 : how->detector_steps;
    if (before == 0) w.since = m.model().segment;
    w.steps = before + m.compared();
    w.workers = m.workers_seen();
  }
  // The model that lacks the most steps.
  const auto least = std::ranges::min_element(watched, {}, [](const auto& entry) {
    return static_cast<double>(entry.second.steps) -
           static_cast<double>(detect::least_steps(entry.second.workers));
  });
  if (least == watched.end()) return;
  out.statistics_steps = least->second.steps;
  out.statistics_workers = least->second.workers;
  out.statistics_need = detect::least_steps(least->second.workers);
  out.statistics_since = least->second.since;
}

// The count of the model with the largest count, over its segments.
std::uint64_t most_of(std::span<const ModelSteps> models,
                      std::uint64_t (ModelSteps::*count)() const) {
  std::map<ModelPart, std::uint64_t> sums;
  std::uint64_t most = 0;
  for (const ModelSteps& m : models) {
    most = std::max(most, sums[{m.model().model_index, m.model().dp_group}] += (m.*count)());
  }
  return most;
}

}  // namespace

void ModelSteps::add(const StepRecord& step) {
  const bool whole = !step.lacks_packets();
  std::uint64_t unreduced = 0;
  bool reduced = true;
  for (const WorkerRecord& worker : step.workers) {
    unreduced = std::max(unreduced, worker.number.unreduced);
    reduced = worker.number.is_reduced();
  }
  if (reduced) {
    reduced_.add(step.step - std::min(unreduced, step.step), whole);
  } else {
    unreduced_.add(unreduced, whole);
  }
  ++logged_;
  compared_ += step.workers_seen >= 2 && whole;
  workers_expected_ = std::max<std::uint64_t>(workers_expected_, step.workers_expected);
  workers_seen_ = std::max<std::uint64_t>(workers_seen_, step.workers_seen);
}

std::uint64_t Coverage::checks_made() const {
  return std::accumulate(checks.begin(), checks.end(), std::uint64_t{0}) -
         checks[static_cast<std::size_t>(CheckRecord::State::kNotPossible)];
}

std::vector<std::span<const StepRecord>> cut(std::span<const StepRecord> steps) {
  std::vector<std::span<const StepRecord>> out;
  for (auto at = steps.begin(); at != steps.end();) {
    const auto end =
        std::find_if(at, steps.end(), [&](const StepRecord& s) { return s.model != at->model; });
    out.emplace_back(at, end);
    at = end;
  }
  return out;
}

std::vector<ModelSteps> models_of(std::span<const StepRecord> steps) {
  std::vector<ModelSteps> out;
  for (const auto& part : cut(steps)) {
    ModelSteps& model = out.emplace_back(part.front().model);
    for (const StepRecord& step : part) model.add(step);
  }
  return out;
}

Coverage cover(std::span<const ModelSteps> models, std::span<const Continuation> continuations,
               const CheckCounts& checks) {
  Coverage out;
  std::vector<StepCount> counts;
  for (const ModelSteps& m : models) counts.push_back({.model = m.model(), .steps = m.logged()});
  out.steps_logged = training_steps(counts, continuations);
  out.steps_lost = most_of(models, &ModelSteps::lost);
  out.steps_compared = most_of(models, &ModelSteps::compared);
  watch_least(models, continuations, out);
  const Workers workers = most_workers(models);
  out.workers_expected = workers.expected;
  out.workers_seen = workers.seen;
  out.checks = checks;
  return out;
}

std::string statistics_text(const Coverage& coverage) {
  if (coverage.statistics_judged()) return {};
  const auto since =
      coverage.statistics_since > 1
          ? fmt::format(" since they started over in segment {}", coverage.statistics_since)
          : std::string();
  return fmt::format("statistics need {} steps with {} ranks, and saw {}{}",
                     coverage.statistics_need, coverage.statistics_workers,
                     coverage.statistics_steps, since);
}

namespace {

// A slow rank costs time but changes no number; neither does a stall that ended.
bool is_of_what_is_trained(const Finding& f) {
  const checks::Check check = checks::find_check(f.check);
  const bool of_time = check != nullptr && check->of_time && f.also.empty();
  return f.severity > (of_time ? Severity::kWarning : Severity::kInfo);
}

}  // namespace

Verdict verdict(std::span<const Finding> findings, const Coverage& coverage, bool complete) {
  if (std::ranges::any_of(findings, is_of_what_is_trained)) return Verdict::kInconsistent;
  const bool enough = complete && coverage.steps_lost == 0 && coverage.checks_made() > 0 &&
                      coverage.steps_compared >= kStepsForAVerdict;
  return enough ? Verdict::kConsistent : Verdict::kInsufficientEvidence;
}

}  // namespace presum::judge
