// SPDX-License-Identifier: Apache-2.0
#include "compare/remarks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "compare/first_difference.h"

namespace presum::compare {
namespace {

using State = StageResult::State;

// Why what both runs hold cannot be compared.
std::string why_not_comparable(Stage stage, const UncomparedSteps& uncompared) {
  switch (stage) {
    case Stage::kData:
      if (!uncompared.same_salt) {
        return "the runs' salts differ, so their samples cannot be compared (set PRESUM_SALT)";
      }
      return "not all rows of the step were kept";
    case Stage::kParameters:
      return "hashes are of other parameters (recorded at other distances, after a restart, or of "
             "models with other parameters)";
    case Stage::kFinal:
      return "the runs did not end at the same step, or made other numbers of optimiser steps "
             "after "
             "the last recorded one";
    case Stage::kGradient:
      if (uncompared.skipping > 0)
        return "no gradient was read (sparse, or of earlier micro-batches alone)";
      [[fallthrough]];
    default:
      return "no worker is in both runs";
  }
}

std::string why(Stage stage, State state, const UncomparedSteps& uncompared) {
  switch (state) {
    case State::kNotInA:
      return "not recorded in A";
    case State::kNotInB:
      return "not recorded in B";
    case State::kNotInEither:
      return "not recorded in either run";
    case State::kOtherWorkerCounts:
      return "the numbers of workers differ";
    default:
      return why_not_comparable(stage, uncompared);
  }
}

void list_stage(Stage stage, const UncomparedSteps& uncompared, ModelComparison& model) {
  for (const State state : {State::kNotInA, State::kNotInB, State::kNotInEither,
                            State::kNotComparable, State::kOtherWorkerCounts}) {
    const auto times =
        uncompared.states[static_cast<std::size_t>(stage)][static_cast<std::size_t>(state)];
    if (times == 0) continue;
    const auto at = stage == Stage::kFinal || times == model.common_steps
                        ? ""
                        : fmt::format(" at {} of {} common steps", times, model.common_steps);
    model.not_compared.push_back(
        fmt::format("{}{}: {}", to_string(stage), at, why(stage, state, uncompared)));
  }
}

void list_steps(const char* name, const RecordedSteps& side, const RecordedSteps& other,
                ModelComparison& model) {
  const std::uint64_t alone = side.steps - model.common_steps;
  if (alone == 0) return;
  model.not_compared.push_back(
      fmt::format("{} of the {} steps of {} ({} to {}): {} does not hold them ({} to {})", alone,
                  side.steps, name, side.first_step, side.last_step, *name == 'A' ? "B" : "A",
                  other.first_step, other.last_step));
}

}  // namespace

void list_not_compared(const UncomparedSteps& uncompared, ModelComparison& model) {
  for (std::size_t s = 0; s < kStages; ++s) list_stage(static_cast<Stage>(s), uncompared, model);
  const auto say = [&](std::uint64_t times, const char* what, const char* why) {
    if (times == 0) return;
    model.not_compared.push_back(
        fmt::format("{} at {} of {} common steps{}", what, times, model.common_steps, why));
  };
  say(uncompared.positions, "content of samples", ": the salts differ (set PRESUM_SALT)");
  say(uncompared.skipping,
      "gradients that were not read (sparse, or of earlier micro-batches alone)", "");
  say(uncompared.lacking, "workers whose packet is missing in a run,", "");
  list_steps("A", model.a, model.b, model);
  list_steps("B", model.b, model.a, model);
}

void remark_fewer_updates(const char* name, std::uint64_t step,
                          const std::vector<std::uint32_t>& ranks, ModelComparison& model) {
  model.remarks.push_back(fmt::format(
      "rank{} {} made fewer optimiser steps in {} than in the other run, from step {} on",
      ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "), name, step));
}

void remark_unseeded(const FingerprintKinds& unseeded, ModelComparison& model) {
  if (unseeded.empty()) return;
  std::vector<std::string_view> names;
  for (const std::uint32_t kind : unseeded) names.push_back(find_fingerprint_kind(kind)->name);
  model.remarks.push_back(fmt::format(
      "{} differ from the first common step on and are left out: they were not seeded, and "
      "torch does not draw from them",
      fmt::join(names, ", ")));
}

void remark_random_generators(const std::optional<std::uint64_t>& equal_after,
                              ModelComparison& model) {
  const auto& random = model.at(Stage::kRandom).first;
  if (!model.first && random) {
    model.remarks.push_back(
        fmt::format("{} differ from step {} on, and nothing that was compared follows from it",
                    random->what, random->step));
  }
  if (model.first && equal_after && differs_earlier(model, Stage::kRandom, model.first)) {
    model.remarks.push_back(fmt::format("{} differ from step {} on, but step {} came out equal",
                                        random->what, random->step, *equal_after));
  }
}

void remark_unclosed(const char* name, std::span<const SegmentInfo> segments,
                     ModelComparison& model) {
  bool said = false;
  for (const SegmentInfo& s : segments) {
    if (s.incomplete.empty()) continue;
    model.remarks.push_back(fmt::format("the record of {} is {}", name, incomplete_text(s)));
    said = true;
  }
  if (said || segments.empty() || segments.back().closed) return;
  model.remarks.push_back(fmt::format(
      "{} was not closed: it was killed or is still going on, and its last steps may be missing",
      name));
}

void remark_restarts(const char* name, const std::vector<SegmentSpan>& spans,
                     ModelComparison& model) {
  for (const SegmentSpan& p : spans) {
    if (p.alignment == SegmentSpan::Alignment::kFirst) continue;
    const char* const how = p.alignment == SegmentSpan::Alignment::kReplays ? "which it does again"
                            : p.alignment == SegmentSpan::Alignment::kRestart
                                ? "from the beginning"
                                : "which is assumed: no single earlier step is like its first";
    model.remarks.push_back(
        fmt::format("segment {} of {} goes on at step {}, {}", p.segment, name, p.begin, how));
  }
}

}  // namespace presum::compare
