// SPDX-License-Identifier: Apache-2.0
// What a program reports about its model and about the end of a step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace presum {

// Position of a parameter in the list passed to Session::create.
using ParameterId = std::uint32_t;

struct Parameter {
  std::string name;            // the framework's name; parts that wrappers add are removed
  std::uint64_t elements = 0;  // of the whole parameter, unsharded
  // Name of its layer. Empty: the path through its first number, such as "model.layers.3", or its
  // first two components if there is no number.
  std::string group;
};

struct StepEnd {
  std::optional<std::uint64_t> optimizer_step;  // default: the step's number plus 1
  std::uint32_t micro_batches = 1;
  std::uint32_t skipped_parameters = 0;  // gradients that could not be read (sparse)
  // The factor that a GradScaler applied to the gradients; norms are divided by it. REQUIRES: > 0.
  double gradient_scale = 1;

  // Optimizer steps finished at the end of a step.
  std::uint64_t optimizer_steps(std::uint64_t step) const {
    return optimizer_step.value_or(step + 1);
  }
};

}  // namespace presum
