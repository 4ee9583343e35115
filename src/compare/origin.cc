// SPDX-License-Identifier: Apache-2.0
#include "compare/origin.h"

#include <algorithm>
#include <vector>

namespace presum::compare {
namespace {

using Place = Origin::Place;

bool unseen(const ModelComparison& m, Stage stage) {
  return std::ranges::find(m.unseen, stage) != m.unseen.end();
}

const Difference& first_of(const ModelComparison& m) { return *m.at(*m.first).first; }

bool of_parameters(Stage stage) { return stage == Stage::kParameters || stage == Stage::kFinal; }

// The step after the last one whose update can be the cause.
std::uint64_t end_of(const ModelComparison& m) {
  return first_of(m).step + (*m.first == Stage::kFinal ? 1 + m.unrecorded : 0);
}

// What happened between the last identical step and the next one's forward pass.
UpdateSteps update_of(const ModelComparison& m) {
  return {m.dated_after.value_or(*m.last_identical), end_of(m) - 1, m.reduced_equal_before};
}

bool of_buffers_alone(const Difference& d) {
  const auto* states = std::get_if<OtherStates>(&d.what);
  return states != nullptr && states->parameters.empty() && !states->buffers.empty();
}

Origin origin_of_parameters(const ModelComparison& m) {
  if (!m.last_identical)
    return {.place = m.any_before ? Place::kStartOrEarlierUpdate : Place::kStart};
  if (of_buffers_alone(first_of(m))) return {.place = Place::kBuffers, .update = update_of(m)};
  return {.place = Place::kUpdate,
          .update = update_of(m),
          .some_workers = !first_of(m).ranks.empty() && !first_of(m).all_ranks};
}

// Whether all workers differ at the first step, be it in their gradients alone.
bool everywhere(const ModelComparison& m) {
  const auto& gradient = m.at(Stage::kGradient).first;
  return first_of(m).all_ranks ||
         (gradient && gradient->all_ranks && gradient->step == first_of(m).step);
}

// All workers differ at once although nothing before it does: what was not seen may be the cause.
Origin of_computation(const ModelComparison& m, Place place) {
  Origin out{.place = place, .samples_unseen = unseen(m, Stage::kData) || m.positions_only};
  if (everywhere(m) && m.last_identical) out.update = update_of(m);
  return out;
}

Place place_of_data(const Difference& d) {
  return std::holds_alternative<SamplesDealtOtherwise>(d.what) ? Place::kDealing
         : std::holds_alternative<OtherLabels>(d.what)         ? Place::kLabels
                                                               : Place::kData;
}

// The step at which losses or gradients first differ.
std::optional<std::uint64_t> computed_otherwise(const ModelComparison& m) {
  std::optional<std::uint64_t> out;
  for (const Stage stage : {Stage::kLoss, Stage::kGradient}) {
    const auto& first = m.at(stage).first;
    if (first && (!out || first->step < *out)) out = first->step;
  }
  return out;
}

// The last step before that at which all losses and gradients were compared and equal. Of a stage
// of which no step was, nothing is said, see computed_of().
std::optional<std::uint64_t> last_computed(const ModelComparison& m) {
  std::optional<std::uint64_t> out;
  for (const Stage stage : {Stage::kLoss, Stage::kGradient}) {
    const auto equal = m.at(stage).last_whole;
    if (equal) out = std::min(out.value_or(*equal), *equal);
  }
  const auto otherwise = computed_otherwise(m);
  return otherwise && out >= otherwise ? std::nullopt : out;
}

bool is_rate(const SettingValues& values) {
  return values.kind == static_cast<std::uint32_t>(FingerprintKind::kLearningRate) ||
         values.kind == static_cast<std::uint32_t>(FingerprintKind::kWeightDecay);
}

// Likewise, of the settings that workers told at a step.
std::vector<UpdateSetting> settings_of_update(const Difference& configuration) {
  std::vector<UpdateSetting> out;
  for (const Evidence& e : configuration.evidence) {
    const auto* const values = std::get_if<SettingValues>(&e.detail);
    if (values != nullptr && is_rate(*values) && out.empty()) out.emplace_back(*values);
  }
  const auto& kinds = std::get<OtherSettings>(configuration.what).kinds;
  const auto unnamed = static_cast<std::uint32_t>(FingerprintKind::kOptimizerSettings);
  if (out.empty() && std::ranges::find(kinds, unnamed) != kinds.end()) {
    out.emplace_back(UnnamedSetting{});
  }
  return out;
}

// Settings of the optimiser that are known to differ.
std::vector<UpdateSetting> settings_of_update(const ModelComparison& m,
                                              std::span<const FactDifference> facts,
                                              const UpdateRange& updates,
                                              std::optional<std::uint64_t> updates_at) {
  std::vector<UpdateSetting> out;
  for (const FactDifference& f : facts) {
    const bool own = f.module == m.module && f.weight == FactDifference::Weight::kDefining;
    if (!own || !f.key.starts_with("optimizer") || f.since >= updates.end) continue;
    out.emplace_back(FactValues{f.key, f.a, f.b});
  }
  const auto& set = m.at(Stage::kConfiguration).first;
  if (out.empty() && set && set->step < updates.end) out = settings_of_update(*set);
  if (updates_at && *updates_at >= *updates.first && *updates_at < updates.end) {
    out.emplace_back(OtherUpdates{*updates_at});
  }
  return out;
}

}  // namespace

std::optional<std::uint64_t> dated_after(const ModelComparison& m, Stage stage) {
  const Difference& d = *m.at(stage).first;
  const auto computed = last_computed(m);
  const bool dates = stage == Stage::kParameters && computed_otherwise(m) == d.step;
  return dates && d.last_seen && computed > d.last_seen ? computed : std::nullopt;
}

std::optional<Bracket> bracket_of(const ModelComparison& m) {
  if (!m.first || !m.any_before) return std::nullopt;
  const std::uint64_t end = end_of(m);
  if (!m.last_identical) return Bracket{.end = end};
  const std::uint64_t since = *m.last_identical + 1;
  return since < end ? std::optional(Bracket{since, end}) : std::nullopt;
}

std::optional<Dating> dating_of(const ModelComparison& m) {
  if (!m.first || !of_parameters(*m.first) || !m.bracket) return std::nullopt;
  using Kind = Dating::Kind;
  const std::uint64_t step = first_of(m).step;
  if (m.dated_after) return Dating{Kind::kDates, *m.dated_after, step};
  const auto computed = last_computed(m);
  if (!computed || *computed < step) return std::nullopt;
  if (*m.first == Stage::kFinal) return Dating{Kind::kAfterThem, *computed};
  const auto otherwise = computed_otherwise(m);
  return otherwise ? Dating{Kind::kTooLate, *computed, *otherwise}
                   : Dating{Kind::kNeverDiffer, *computed};
}

std::optional<Cause> cause_of(const ModelComparison& m, std::span<const FactDifference> facts,
                              const UpdateRange& updates, std::optional<std::uint64_t> updates_at) {
  if (!of_parameters(*m.first_number) || !updates.first) return std::nullopt;
  if (!updates.reduced && !updates.gradients) return std::nullopt;
  if (of_buffers_alone(*m.at(*m.first_number).first)) return std::nullopt;
  return Cause{.updates = {*updates.first, updates.end - 1, updates.reduced},
               .dated = updates.dated,
               .settings = settings_of_update(m, facts, updates, updates_at)};
}

std::optional<Origin> origin_of(const ModelComparison& m) {
  if (!m.first) return std::nullopt;
  switch (*m.first) {
    case Stage::kConfiguration:
      return Origin{.place = Place::kSettings};
    case Stage::kData:
      return Origin{.place = place_of_data(first_of(m))};
    case Stage::kRandom:
      return Origin{.place = Place::kDraws};
    case Stage::kParameters:
    case Stage::kFinal:
      return origin_of_parameters(m);
    case Stage::kLoss:
      return of_computation(m, Place::kForward);
    case Stage::kGradient:
      return of_computation(m,
                            unseen(m, Stage::kLoss) ? Place::kForwardOrBackward : Place::kBackward);
    case Stage::kReduction:
      return Origin{.place = m.a.workers == m.b.workers ? Place::kReduction : Place::kWorkerCounts};
  }
  return std::nullopt;
}

}  // namespace presum::compare
