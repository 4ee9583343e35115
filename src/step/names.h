// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

// Names of parameters. All functions are thread-safe.
namespace presum::step {

// Removes the parts that wrappers add anywhere in the path ("module.", "_orig_mod.",
// "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."), so that a parameter keeps its identity
// when the model is wrapped.
std::string canonical_name(std::string_view name);

// The layer of the parameter with this canonical name: its path up to and including the first
// number, such as "model.layers.3"; without a number, the first two parts of the path.
std::string default_group(std::string_view canonical);

}  // namespace presum::step
