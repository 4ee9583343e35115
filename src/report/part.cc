// SPDX-License-Identifier: Apache-2.0
#include "report/part.h"

#include <algorithm>
#include <tuple>

namespace presum::report {

std::vector<std::span<const StepRecord>> cut(std::span<const StepRecord> steps) {
  const auto key = [](const StepRecord& s) {
    return std::tie(s.model.segment, s.model.module, s.model.shard);
  };
  std::vector<std::span<const StepRecord>> out;
  for (auto at = steps.begin(); at != steps.end();) {
    const auto end =
        std::find_if(at, steps.end(), [&](const StepRecord& s) { return key(s) != key(*at); });
    out.emplace_back(at, end);
    at = end;
  }
  return out;
}

}  // namespace presum::report
