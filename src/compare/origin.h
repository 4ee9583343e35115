// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "compare/compare.h"

namespace presum::compare {

// What is known of the steps whose updates may have brought a difference of parameters about.
struct UpdateRange {
  std::optional<std::uint64_t> first;  // none: the parameters were not compared before
  std::uint64_t end = 0;               // exclusive
  bool dated = false;                  // by losses and gradients
  bool reduced = false;                // at each, reduced gradients were compared and equal
  bool gradients = false;              // likewise, those of all workers
};

// The step up to which losses and gradients are equal, where they date a stage's first difference
// of parameters: they differ from its step on.
std::optional<std::uint64_t> dated_after(const ModelComparison& model, Stage stage);
// "losses and gradients": which of the two were compared and equal before they differ.
std::string computed_of(const ModelComparison& model);
// Since when the first difference is there; empty where that is the step at which it was found.
std::string bracket_of(const ModelComparison& model);
// What losses and gradients say about a first difference of parameters within its bracket.
std::string dated_of(const ModelComparison& model);
// That the update itself differs, where the first number that does is a parameter and gradients
// before it are equal; names what is known to differ of the optimiser. `updates_at`: the first step
// at which the runs made other numbers of optimiser steps.
std::string cause_of(const ModelComparison& model, std::span<const FactDifference> facts,
                     const UpdateRange& updates, std::optional<std::uint64_t> updates_at);

// Where to look for the cause of the first difference: what is left once all that was compared
// before it is known to be equal. Empty where there is none.
std::string origin_of(const ModelComparison& model);

}  // namespace presum::compare
