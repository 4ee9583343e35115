// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

// What parameters are called. All functions are thread-safe.
namespace presum::step {

// The name without the parts that wrappers add anywhere in the path ("module.", "_orig_mod.",
// "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."), so that a parameter keeps its identity
// when the model is wrapped.
std::string canonical_name(std::string_view name);

// The layer of a parameter of that canonical name: its path up to and with the first number, such
// as "model.layers.3", else its first two parts.
std::string default_group(std::string_view canonical);

}  // namespace presum::step
