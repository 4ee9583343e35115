// SPDX-License-Identifier: Apache-2.0
// Orders of forward and backward passes in which DistributedDataParallel does not reduce.
#pragma once

#include <string>
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
// The name of the order of this kind that all of these ranks report in this step; empty if they
// report none, or several.
std::string backward_order_of(const StepContext& context, const Ranks& ranks, bool reduces_first);

}  // namespace presum::checks
