// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <string>
#include <string_view>
#include <vector>

namespace presum::aggregate {

// Where a rank's thread stands.
struct ThreadPlace {
  std::string doing;    // what is said of it besides its place
  std::string site;     // the program's innermost line: "step() of train.py:88"
  std::string stack;    // innermost first, one frame a line; "..." for frames that were left out
  bool asleep = false;  // so the stack is where it stays, not one of many that it passes through
  auto operator<=>(const ThreadPlace&) const = default;  // NOLINT(modernize-use-nullptr)
};

// The site of each, and where it is another's too: the deepest frame at which their stacks part.
// Those that do the same are told apart only where they sleep. Stacks that are equal, or that part
// in frames that were left out, stay as they are.
std::vector<std::string> sites_apart(const std::vector<ThreadPlace>& places);

// `stack` without the frames of `function`, which the program called at `site`, and those within.
std::string_view without_call(std::string_view stack, std::string_view function,
                              std::string_view site);

}  // namespace presum::aggregate
