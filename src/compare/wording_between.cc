// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "compare/wording.h"

namespace presum::compare {
namespace {

// "step 6", "steps 3 to 6".
std::string steps_text(std::uint64_t first, std::uint64_t last) {
  return first == last ? fmt::format("step {}", first) : fmt::format("steps {} to {}", first, last);
}

std::string one_of(std::uint64_t first, std::uint64_t last) {
  return (first == last ? "" : "one of the ") + steps_text(first, last);
}

const Difference& first_of(const ModelComparison& m) { return *m.at(*m.first).first; }

std::string before_parameters(const ModelComparison& m) {
  if (!m.last_identical) {
    return m.any_before ? "the weights that the runs began with, and all updates so far: these "
                          "parameters were not compared before"
                        : "the weights that the runs began with: initialization, or the checkpoint";
  }
  const std::uint64_t last =
      *m.first == Stage::kFinal ? first_of(m).step + m.unrecorded : first_of(m).step - 1;
  return fmt::format("reduction and optimizer update of {}, and writes to parameters or buffers",
                     steps_text(*m.last_identical, last));
}

// "step 6", or all steps since it was last seen equal.
std::string at_steps(const ModelComparison& m) {
  const std::uint64_t step = first_of(m).step;
  if (!m.bracket) return steps_text(step, step);
  return m.bracket->since ? steps_text(*m.bracket->since, step)
                          : fmt::format("step {}, or of an earlier one", step);
}

// Parameters are compared in part at most steps, so an update of another part may show here first.
std::string computation(const char* pass, const ModelComparison& m) {
  return fmt::format(
      "the {} of {}{}", pass, at_steps(m),
      m.any_before ? ", or an update before it of parameters that are not hashed then" : "");
}

}  // namespace

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

std::string between_text(const ModelComparison& m) {
  if (!m.first) return "";
  const bool loss_unseen = std::ranges::find(m.unseen, Stage::kLoss) != m.unseen.end();
  switch (*m.first) {
    case Stage::kParameters:
    case Stage::kFinal:
      return before_parameters(m);
    case Stage::kLoss:
      return computation("forward pass", m);
    case Stage::kGradient:
      return computation(loss_unseen ? "forward and backward pass" : "backward pass", m);
    case Stage::kReduction:
      return "the reduction of " + at_steps(m);
    case Stage::kConfiguration:
    case Stage::kData:
    case Stage::kRandom:
      break;
  }
  return "";
}

}  // namespace presum::compare
