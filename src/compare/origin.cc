// SPDX-License-Identifier: Apache-2.0
#include "compare/origin.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace presum::compare {
namespace {

bool unseen(const ModelComparison& m, Stage stage) {
  return std::ranges::find(m.unseen, stage) != m.unseen.end();
}

const Difference& first_of(const ModelComparison& m) { return *m.at(*m.first).first; }

// What happened between the last identical step and the next one's forward pass.
std::string update_of(const ModelComparison& m) {
  const std::uint64_t step = *m.last_identical;
  const bool next = first_of(m).step == step + 1;
  const auto which = next ? fmt::format("step {}", step)
                          : fmt::format("one of the steps {} to {}", step, first_of(m).step - 1);
  if (m.reduced_before && next) {
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

std::string of_parameters(const ModelComparison& m) {
  if (!m.last_identical) {
    return "the runs began with other weights: initialisation, its seed, or the checkpoint";
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
      "either {}; or {}, since parameters are hashed in slices and those before "
      "step {} were compared in part at most",
      computation, update_of(m), first_of(m).step);
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
      return of_parameters(m);
    case Stage::kLoss:
      return of_computation(m, "the forward pass, or what was done to the loss");
    case Stage::kGradient:
      return of_gradient(m);
    case Stage::kReduction:
      return of_reduction(m);
    case Stage::kFinal:
      return "the reduction or the optimiser's update of the last step";
  }
  return "";
}

}  // namespace

std::string origin_of(const ModelComparison& model) { return model.first ? of_stage(model) : ""; }

}  // namespace presum::compare
