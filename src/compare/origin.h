// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>

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
// Since when the first difference is there; none where that is the step at which it was found.
std::optional<Bracket> bracket_of(const ModelComparison& model);
// What losses and gradients say about a first difference of parameters. REQUIRES: its bracket is
// known.
std::optional<Dating> dating_of(const ModelComparison& model);
// Of a first number that is a parameter, where gradients before it are equal. `updates_at`: the
// first step at which the runs made other numbers of optimiser steps.
std::optional<Cause> cause_of(const ModelComparison& model, std::span<const FactDifference> facts,
                              const UpdateRange& updates, std::optional<std::uint64_t> updates_at);
// None where there is no first difference.
std::optional<Origin> origin_of(const ModelComparison& model);

}  // namespace presum::compare
