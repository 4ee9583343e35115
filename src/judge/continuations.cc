// SPDX-License-Identifier: Apache-2.0
#include "judge/continuations.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace presum::judge {
namespace {

// Segments of one model that continue each other.
struct Line {
  std::set<std::uint32_t> segments;
  std::uint64_t steps = 0;
};
using Lines = std::vector<Line>;

Line& line_of(Lines& lines, const Continuation* continuation) {
  if (continuation != nullptr && continuation->from_segment) {
    const auto found = std::ranges::find_if(lines, [&](const Line& line) {
      return line.segments.contains(*continuation->from_segment);
    });
    if (found != lines.end()) return *found;
  }
  return lines.emplace_back();
}

void add(Lines& lines, const StepCount& count, const Continuation* continuation) {
  Line& line = line_of(lines, continuation);
  const std::uint64_t before = line.segments.empty() ? 0 : continuation->steps_before;
  line.steps = std::max(line.steps, before + count.steps);
  line.segments.insert(count.model.segment);
}

std::string steps_text(std::uint64_t steps) {
  return fmt::format("{} step{}", steps, steps == 1 ? "" : "s");
}

std::string model_text(const ModelKey& model) {
  std::string out;
  if (model.model_index != 0) out += fmt::format(", model {}", model.model_index);
  if (model.dp_group != 0) out += fmt::format(", data-parallel group {}", model.dp_group);
  return out;
}

}  // namespace

std::uint64_t training_steps(std::span<const StepCount> counts,
                             std::span<const Continuation> continuations) {
  std::map<std::pair<std::uint32_t, std::uint32_t>, Lines> models;
  for (const StepCount& count : counts) {
    const auto how = std::ranges::find(continuations, count.model, &Continuation::model);
    add(models[{count.model.model_index, count.model.dp_group}], count,
        how == continuations.end() ? nullptr : &*how);
  }
  std::uint64_t most = 0;
  for (const auto& [model, lines] : models) {
    std::uint64_t steps = 0;
    for (const Line& line : lines) steps += line.steps;
    most = std::max(most, steps);
  }
  return most;
}

std::string outcome_text(const Continuation& c) {
  const auto from =
      c.from_segment && c.from_step
          ? fmt::format("continues from step {} of segment {}: ", *c.from_step, *c.from_segment)
          : std::string();
  if (c.detector_steps > 0) {
    return fmt::format("{}detectors keep what they learned in {}", from,
                       steps_text(c.detector_steps));
  }
  return fmt::format("{}detectors start over{}{}", from, from.empty() ? ": " : ", as ", c.reason);
}

std::vector<std::string> continuation_texts(std::span<const Continuation> continuations) {
  std::vector<std::string> out;
  std::set<std::pair<std::uint32_t, std::string>> told;
  for (const Continuation& c : continuations) {
    auto outcome = outcome_text(c);
    if (!told.emplace(c.model.segment, outcome).second) continue;
    out.push_back(fmt::format("segment {}{}{}{}", c.model.segment, model_text(c.model),
                              c.from_segment ? " " : ": ", outcome));
  }
  return out;
}

}  // namespace presum::judge
