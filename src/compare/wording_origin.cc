// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "compare/wording.h"

namespace presum::compare {
namespace {

// "step 6", "one of the steps 3 to 6".
std::string one_of(std::uint64_t first, std::uint64_t last) {
  return first == last ? fmt::format("step {}", first)
                       : fmt::format("one of the steps {} to {}", first, last);
}

const Difference& first_of(const ModelComparison& m) { return *m.at(*m.first).first; }

// ---- the cause

struct SettingWords {
  std::string operator()(const FactValues& v) const { return values_text(v); }
  std::string operator()(const SettingValues& v) const { return values_text(v); }
  std::string operator()(const UnnamedSetting&) const {
    return "a setting that is not recorded by its name: optimizer_settings";
  }
  std::string operator()(const OtherUpdates& u) const {
    return fmt::format("other numbers of optimiser steps from step {} on", u.from);
  }
};

// "these parameters were equal before it, and so was the reduced gradient".
std::string equal_text(const Cause& cause, const std::string& computed) {
  const bool reduced = cause.updates.reduced_equal;
  if (cause.dated) {
    return reduced ? computed + ", and the reduced gradient, were equal"
                   : computed + " of all workers were equal";
  }
  return fmt::format("these parameters were equal before it, and so {}",
                     reduced ? "was the reduced gradient" : "were the gradients of all workers");
}

std::string settings_text(const Cause& cause) {
  if (cause.settings.empty()) {
    return "the optimiser, its state or its settings, clipping, or a write to parameters";
  }
  std::vector<std::string> out;
  for (const UpdateSetting& s : cause.settings) out.push_back(std::visit(SettingWords{}, s));
  return fmt::format("{}", fmt::join(out, "; "));
}

// ---- where to look

std::string update_text(const UpdateSteps& updates) {
  const auto which = one_of(updates.first, updates.last);
  if (updates.reduced_equal) {
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

// `here`: what was computed.
std::string computation_text(const Origin& origin, const Difference& first,
                             const std::string& here) {
  auto computation = fmt::format(
      "{}{} (an operation that does not repeat, another kernel or precision, the machine)",
      origin.samples_unseen ? "the samples, whose content was not compared, or " : "", here);
  if (!origin.update) return computation;
  return fmt::format(
      "either {}; or {}, since parameters are hashed in slices and those before step {} were "
      "compared in part at most; or the same of an earlier step, if nothing computed before step "
      "{} shows it",
      computation, update_text(*origin.update), first.step, first.step);
}

std::string pass_text(const char* pass, const Difference& d) {
  return fmt::format("{}{}{}", pass, d.layers.empty() ? "" : " of " + d.layers.front(),
                     d.layers.size() > 1 ? ", from which on all that follow may differ" : "");
}

std::string place_text(const Origin& origin, const Difference& first) {
  using Place = Origin::Place;
  constexpr const char* kStart =
      "the runs began with other weights: initialisation, its seed, or the checkpoint";
  switch (origin.place) {
    case Place::kSettings:
      return "the settings: make them equal first, and compare again";
    case Place::kDealing:
      return "how samples are dealt to workers: seed, epoch and rank of the sampler";
    case Place::kLabels:
      return "what belongs to the samples: labels, targets or masks, or how they are made; the "
             "samples themselves, and which worker got them, are equal";
    case Place::kData:
      return "the data: its content, the sampler's seed and epoch, or where the reading went on "
             "after a restart";
    case Place::kDraws:
      return "random draws: another seed, or draws that only one run made before this step";
    case Place::kStart:
      return kStart;
    case Place::kStartOrEarlierUpdate:
      return fmt::format("these parameters were not compared before: an earlier update, or {}",
                         kStart);
    case Place::kUpdate:
      return update_text(*origin.update) +
             (origin.some_workers ? "; only some workers differ: they have left the others" : "");
    case Place::kBuffers:
      return fmt::format(
          "the buffers alone, after {}: what went through the model in training mode beside the "
          "training (validation moves BatchNorm's statistics), or a write to them",
          one_of(origin.update->first, origin.update->last));
    case Place::kForward:
      return computation_text(origin, first, "the forward pass, or what was done to the loss");
    case Place::kBackward:
      return computation_text(origin, first, pass_text("the backward pass", first));
    case Place::kForwardOrBackward:
      return computation_text(origin, first, pass_text("the forward or backward pass", first));
    case Place::kWorkerCounts:
      return "other numbers of workers add up in another order: differences of rounding size are "
             "expected, larger ones are not";
    case Place::kReduction:
      return "equal gradients went in, another sum came out: the reduction's order, algorithm, "
             "buckets, dtype or communication hook";
  }
  return "";
}

}  // namespace

std::string computed_text(const ModelComparison& m) {
  const bool losses = m.at(Stage::kLoss).last_whole.has_value();
  const bool gradients = m.at(Stage::kGradient).last_whole.has_value();
  return losses && gradients ? "losses and gradients"
         : losses            ? "losses"
         : gradients         ? "gradients"
                             : "";
}

std::string bracket_text(const ModelComparison& m) {
  if (!m.bracket) return "";
  if (!m.bracket->since) return "these were not compared before";
  const std::uint64_t since = *m.bracket->since;
  const std::uint64_t end = m.bracket->end;
  const std::uint64_t step = first_of(m).step;
  const bool after_last = *m.first == Stage::kFinal;
  if (!after_last && *m.first != Stage::kParameters) return "it began at " + one_of(since, step);
  if (since > step) {
    return fmt::format(
        "they differ since one of the last {} updates, those of the steps {} to {}: parameters are "
        "hashed in turn, and these were last seen equal at step {}",
        end - since + 1, since - 1, end - 1, since - 1);
  }
  return fmt::format(
      "they differ since {}{}: parameters are hashed in turn, and these were last seen equal at "
      "step {}",
      one_of(since, step), after_last ? ", or after it" : "", since - 1);
}

std::string dating_text(const ModelComparison& m) {
  if (!m.dating) return "";
  const Dating& d = *m.dating;
  const auto equal = fmt::format("{} are equal up to step {}", computed_text(m), d.equal_until);
  switch (d.kind) {
    case Dating::Kind::kDates:
      return fmt::format(
          "{} and differ at step {}, which dates it to the update of {} unless nothing computed "
          "before shows it",
          equal, d.differ_from, one_of(d.equal_until, d.differ_from - 1));
    case Dating::Kind::kAfterThem:
      return equal + ": it came with an update after them, or nothing that was computed shows it";
    case Dating::Kind::kTooLate:
      return fmt::format("{} all the same: they differ from step {} on, too late to date it", equal,
                         d.differ_from);
    case Dating::Kind::kNeverDiffer:
      return equal +
             " all the same: nothing that was computed shows what differs, so they do not "
             "date it";
  }
  return "";
}

std::string cause_text(const ModelComparison& m) {
  if (!m.cause) return "";
  const Cause& c = *m.cause;
  const auto computed = computed_text(m);
  const bool alone = c.update_alone();
  return fmt::format("{}{} of {} {}differs ({}): {}", c.dated ? "by " + computed + ", " : "",
                     alone ? "the update" : "the reduction or the update",
                     one_of(c.updates.first, c.updates.last), alone ? "itself " : "",
                     settings_text(c), equal_text(c, computed));
}

std::string origin_text(const ModelComparison& m) {
  return m.origin ? place_text(*m.origin, first_of(m)) : "";
}

}  // namespace presum::compare
