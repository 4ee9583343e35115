// SPDX-License-Identifier: Apache-2.0
#include "checks/engine/check.h"

#include <algorithm>
#include <array>

namespace presum::checks {

std::span<const Check> catalog() {
  static const auto kSorted = [] {
    std::array<Check, kChecks> all{};
    std::ranges::copy(kDeclared, all.begin());
    std::ranges::sort(all, {}, &CheckInfo::precedence);
    return all;
  }();
  return kSorted;
}

Check find_check(std::string_view id) {
  const auto found = std::ranges::find(catalog(), id, &CheckInfo::id);
  return found == catalog().end() ? nullptr : *found;
}

std::size_t place_of(Check check) {
  return static_cast<std::size_t>(std::ranges::find(catalog(), check) - catalog().begin());
}

bool explains(Check cause, Check effect) {
  return cause == effect || std::ranges::find(cause->explains, effect) != cause->explains.end();
}

}  // namespace presum::checks
