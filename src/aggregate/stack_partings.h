// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <string>
#include <string_view>
#include <vector>

namespace presum::aggregate {

// Where the thread of a rank is.
struct ThreadPlace {
  std::string doing;  // what is reported about it besides its place
  std::string site;   // innermost line of the program: "step() of train.py:88"
  std::string stack;  // innermost frame first, one per line; "..." for omitted frames
  // If true, the stack is the place where the thread stays; otherwise it is one of many that it
  // passes through.
  bool asleep = false;
  auto operator<=>(const ThreadPlace&) const = default;  // NOLINT(modernize-use-nullptr)
};

// Returns the site of each thread. If two threads have the same site, their sites are the deepest
// frames at which their stacks diverge. Threads with equal `doing` are distinguished only while
// they sleep. Stacks that are equal, or that diverge within omitted frames, keep their site.
std::vector<std::string> sites_apart(const std::vector<ThreadPlace>& places);

// Returns `stack` without the frames of `function`, which the program called at `site`, and the
// frames inside it.
std::string_view without_call(std::string_view stack, std::string_view function,
                              std::string_view site);

}  // namespace presum::aggregate
