// SPDX-License-Identifier: Apache-2.0
#include "compare/step_pair.h"

#include <fmt/format.h>

namespace presum::compare {

std::vector<std::string> GroupOrder::names_backward(const std::vector<std::uint64_t>& ids) const {
  std::vector<std::pair<std::uint32_t, std::string>> known;
  for (const std::uint64_t id : ids) {
    const auto group = groups_.find(id);
    known.push_back(group != groups_.end() ? group->second
                                           : std::pair(0U, fmt::format("group {:016x}", id)));
  }
  std::ranges::sort(known, std::greater<>());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  std::vector<std::string> out;
  out.reserve(known.size());
  for (auto& [position, name] : known) out.push_back(std::move(name));
  return out;
}

}  // namespace presum::compare
