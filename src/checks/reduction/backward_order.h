// SPDX-License-Identifier: Apache-2.0
// Orders of forward and backward passes in which DistributedDataParallel does not reduce.
#pragma once

#include <string_view>

#include "checks/engine/step_context.h"

namespace presum::checks {

struct BackwardOrder {
  std::string_view name;
  bool reduces_first;    // DDP reduces the first backward pass, otherwise none
  std::string_view why;  // what DDP does then
  const char* remedy;
};

// The order of this name; null for "".
const BackwardOrder* backward_order(std::string_view name);
// The order that all of these ranks report in this step; null if they report none, or several.
const BackwardOrder* backward_order_of(const StepContext& context, const Ranks& ranks);

}  // namespace presum::checks
