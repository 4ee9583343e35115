// SPDX-License-Identifier: Apache-2.0
#include "compare/origin.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace presum::compare {
namespace {

bool unseen(const ModelComparison& m, Stage stage) {
  return std::ranges::find(m.unseen, stage) != m.unseen.end();
}

const Difference& first_of(const ModelComparison& m) { return *m.at(*m.first).first; }

// "step 6", "one of the steps 3 to 6".
std::string one_of(std::uint64_t first, std::uint64_t last) {
  return first == last ? fmt::format("step {}", first)
                       : fmt::format("one of the steps {} to {}", first, last);
}

bool of_parameters(Stage stage) { return stage == Stage::kParameters || stage == Stage::kFinal; }

// The step after the last one whose update can be the cause.
std::uint64_t end_of(const ModelComparison& m) {
  return first_of(m).step + (*m.first == Stage::kFinal ? 1 + m.unrecorded : 0);
}

// What happened between the last identical step and the next one's forward pass.
std::string update_of(const ModelComparison& m) {
  const auto which = one_of(m.dated_after.value_or(*m.last_identical), end_of(m) - 1);
  if (m.reduced_equal_before) {
    return fmt::format(
        "the optimiser's update of {} (its settings and state, clipping), or a write to the "
        "parameters after it: the reduced gradient was equal",
        which);
  }
  return fmt::format(
      "the reduction or the optimiser's update of {} (clipping), or a write to the parameters "
      "after it: the reduced gradient was not compared there",
      which);
}

std::string origin_of_parameters(const ModelComparison& m) {
  const auto* const began =
      "the runs began with other weights: initialisation, its seed, or the checkpoint";
  if (!m.last_identical && !m.any_before) return began;
  if (!m.last_identical) {
    return fmt::format("these parameters were not compared before: an earlier update, or {}",
                       began);
  }
  const auto some = first_of(m).ranks.empty() || first_of(m).all_ranks
                        ? ""
                        : "; only some workers differ: they have left the others";
  return update_of(m) + some;
}

// Whether all workers differ at the first step, be it in their gradients alone.
bool everywhere(const ModelComparison& m) {
  const auto& gradient = m.at(Stage::kGradient).first;
  return first_of(m).all_ranks ||
         (gradient && gradient->all_ranks && gradient->step == first_of(m).step);
}

// All workers differ at once although nothing before it does: what was not seen may be the cause.
std::string of_computation(const ModelComparison& m, const std::string& here) {
  const bool samples = unseen(m, Stage::kData) || m.positions_only;
  auto computation = fmt::format(
      "{}{} (an operation that does not repeat, another kernel or precision, the machine)",
      samples ? "the samples, whose content was not compared, or " : "", here);
  if (!everywhere(m) || !m.last_identical) return computation;
  return fmt::format(
      "either {}; or {}, since parameters are hashed in slices and those before step {} were "
      "compared in part at most; or the same of an earlier step, if nothing computed before step "
      "{} "
      "shows it",
      computation, update_of(m), first_of(m).step, first_of(m).step);
}

std::string of_gradient(const ModelComparison& m) {
  const Difference& d = first_of(m);
  const auto layer = d.layers.empty() ? "" : " of " + d.layers.front();
  const auto on = d.layers.size() > 1 ? ", from which on all that follow may differ" : "";
  const auto forward =
      unseen(m, Stage::kLoss) ? "the forward or backward pass" : "the backward pass";
  return of_computation(m, fmt::format("{}{}{}", forward, layer, on));
}

std::string of_data(const Difference& d) {
  return d.what.starts_with("the same samples")
             ? "how samples are dealt to workers: seed, epoch and rank of the sampler"
             : "the data: its content, the sampler's seed and epoch, or where the reading went on "
               "after a restart";
}

std::string of_reduction(const ModelComparison& m) {
  if (m.a.workers != m.b.workers) {
    return "other numbers of workers add up in another order: differences of rounding size are "
           "expected, larger ones are not";
  }
  return "equal gradients went in, another sum came out: the reduction's order, algorithm, "
         "buckets, "
         "dtype or communication hook";
}

std::string of_stage(const ModelComparison& m) {
  switch (*m.first) {
    case Stage::kConfiguration:
      return "the settings: make them equal first, and compare again";
    case Stage::kData:
      return of_data(first_of(m));
    case Stage::kRandom:
      return "random draws: another seed, or draws that only one run made before this step";
    case Stage::kParameters:
    case Stage::kFinal:
      return origin_of_parameters(m);
    case Stage::kLoss:
      return of_computation(m, "the forward pass, or what was done to the loss");
    case Stage::kGradient:
      return of_gradient(m);
    case Stage::kReduction:
      return of_reduction(m);
  }
  return "";
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

// Settings of the optimiser that are known to differ.
std::vector<std::string> settings_of_update(const ModelComparison& m,
                                            std::span<const FactDifference> facts,
                                            const UpdateRange& updates,
                                            std::optional<std::uint64_t> updates_at) {
  std::vector<std::string> out;
  for (const FactDifference& f : facts) {
    const bool own = f.module == m.module && f.weight == FactDifference::Weight::kDefining;
    if (!own || !f.key.starts_with("optimizer") || f.since >= updates.end) continue;
    out.push_back(fmt::format("{}: {} in A, {} in B", f.key, f.a, f.b));
  }
  const auto& set = m.at(Stage::kConfiguration).first;
  const bool in_time = set && set->step < updates.end;
  for (const Evidence& e : in_time ? set->evidence : std::vector<Evidence>()) {
    const bool rate = e.text.starts_with("learning_rate:") || e.text.starts_with("weight_decay:");
    if (rate && out.empty()) out.push_back(e.text);
  }
  if (in_time && out.empty() && set->what.find("optimizer_settings") != std::string::npos) {
    out.emplace_back("a setting that is not recorded by its name: optimizer_settings");
  }
  if (updates_at && *updates_at >= *updates.first && *updates_at < updates.end) {
    out.push_back(fmt::format("other numbers of optimiser steps from step {} on", *updates_at));
  }
  return out;
}

// "these parameters were equal before it, and so was the reduced gradient".
std::string equal_text(const UpdateRange& updates, const std::string& computed) {
  if (updates.dated) {
    return updates.reduced ? computed + ", and the reduced gradient, were equal"
                           : computed + " of all workers were equal";
  }
  return fmt::format(
      "these parameters were equal before it, and so {}",
      updates.reduced ? "was the reduced gradient" : "were the gradients of all workers");
}

}  // namespace

std::optional<std::uint64_t> dated_after(const ModelComparison& m, Stage stage) {
  const Difference& d = *m.at(stage).first;
  const auto computed = last_computed(m);
  const bool dates = stage == Stage::kParameters && computed_otherwise(m) == d.step;
  return dates && d.last_seen && computed > d.last_seen ? computed : std::nullopt;
}

std::string computed_of(const ModelComparison& m) {
  const bool losses = m.at(Stage::kLoss).last_whole.has_value();
  const bool gradients = m.at(Stage::kGradient).last_whole.has_value();
  return losses && gradients ? "losses and gradients"
         : losses            ? "losses"
         : gradients         ? "gradients"
                             : "";
}

std::string bracket_of(const ModelComparison& m) {
  if (!m.first || !m.any_before) return "";
  const std::uint64_t step = first_of(m).step;
  if (!m.last_identical) return "these were not compared before";
  const std::uint64_t since = *m.last_identical + 1;
  if (since >= end_of(m)) return "";
  if (!of_parameters(*m.first)) return "it began at " + one_of(since, step);
  if (since > step) {
    return fmt::format(
        "they differ since one of the last {} updates, those of the steps {} to {}: parameters are "
        "hashed in turn, and these were last seen equal at step {}",
        end_of(m) - since + 1, since - 1, end_of(m) - 1, since - 1);
  }
  return fmt::format(
      "they differ since {}{}: parameters are hashed in turn, and these were last seen equal at "
      "step {}",
      one_of(since, step), *m.first == Stage::kFinal ? ", or after it" : "", since - 1);
}

std::string dated_of(const ModelComparison& m) {
  if (!m.first || !of_parameters(*m.first) || bracket_of(m).empty()) return "";
  const auto computed = last_computed(m);
  const std::uint64_t step = first_of(m).step;
  if (m.dated_after) {
    return fmt::format(
        "{} are equal up to step {} and differ at step {}, which dates it to the update of {} "
        "unless nothing computed before shows it",
        m.computed, *m.dated_after, step, one_of(*m.dated_after, step - 1));
  }
  if (!computed || *computed < step) return "";
  if (*m.first == Stage::kFinal) {
    return fmt::format(
        "{} are equal up to step {}: it came with an update after them, or nothing that was "
        "computed shows it",
        m.computed, *computed);
  }
  const auto otherwise = computed_otherwise(m);
  return otherwise ? fmt::format(
                         "{} are equal up to step {} all the same: they differ from step "
                         "{} on, too late to date it",
                         m.computed, *computed, *otherwise)
                   : fmt::format(
                         "{} are equal up to step {} all the same: nothing that was "
                         "computed shows what differs, so they do not date it",
                         m.computed, *computed);
}

std::string cause_of(const ModelComparison& m, std::span<const FactDifference> facts,
                     const UpdateRange& updates, std::optional<std::uint64_t> updates_at) {
  if (!of_parameters(*m.first_number) || !updates.first) return "";
  if (!updates.reduced && !updates.gradients) return "";
  const auto settings = settings_of_update(m, facts, updates, updates_at);
  const bool known = !settings.empty();
  const bool update = updates.reduced || known;
  return fmt::format(
      "{}{} of {} {}differs ({}{}): {}", updates.dated ? "by " + m.computed + ", " : "",
      update ? "the update" : "the reduction or the update",
      one_of(*updates.first, updates.end - 1), update ? "itself " : "", fmt::join(settings, "; "),
      known ? "" : "the optimiser, its state or its settings, clipping, or a write to parameters",
      equal_text(updates, m.computed));
}

std::string origin_of(const ModelComparison& model) { return model.first ? of_stage(model) : ""; }

}  // namespace presum::compare
