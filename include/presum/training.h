// SPDX-License-Identifier: Apache-2.0
// What a program says of its model, and of a step that ends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace presum {

// Position of a parameter in the list given to Session::create.
using ParameterId = std::uint32_t;

struct Parameter {
  std::string name;            // as the framework calls it; parts that wrappers add are removed
  std::uint64_t elements = 0;  // of the whole parameter
  // Its layer. Empty: the path up to and with the first number, such as "model.layers.3", else its
  // first two parts.
  std::string group;
};

struct StepEnd {
  std::optional<std::uint64_t> optimizer_step;  // none: the step's number and one
  std::uint32_t micro_batches = 1;
  std::uint32_t skipped_parameters = 0;  // gradients that could not be read (sparse)
  // The factor that a GradScaler put on the gradients; norms are divided by it. REQUIRES: > 0.
  double gradient_scale = 1;

  // Those finished at the end of a step.
  std::uint64_t optimizer_steps(std::uint64_t step) const {
    return optimizer_step.value_or(step + 1);
  }
};

}  // namespace presum
