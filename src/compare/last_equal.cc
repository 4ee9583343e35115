// SPDX-License-Identifier: Apache-2.0
#include "compare/last_equal.h"

#include <algorithm>

namespace presum::compare {

void LastEqualHashes::equal(std::uint64_t step, const HashCoverage& coverage,
                            const std::vector<std::string>& layers) {
  if (coverage.whole) whole_ = step;
  if (!coverage.slice) return;
  Slice& slice = slices_[*coverage.slice];
  slice.step = step;
  slice.layers.insert(layers.begin(), layers.end());
}

std::optional<std::uint64_t> LastEqualHashes::of(const HashCoverage& coverage,
                                                 const std::vector<std::string>& layers) const {
  if (coverage.slice) return std::max(whole_, slices_[*coverage.slice].step);
  return coverage.whole ? of_groups_in(layers) : whole_;
}

bool LastEqualHashes::all_after_start() const {
  return whole_ > 0 ||
         std::ranges::all_of(slices_, [](const Slice& s) { return s.step > 0 || s.empty; });
}

// The slice that was seen the longest time ago decides; one that never came up may hold any layer.
std::optional<std::uint64_t> LastEqualHashes::of_groups_in(
    const std::vector<std::string>& layers) const {
  std::optional<std::optional<std::uint64_t>> out;
  for (const Slice& slice : slices_) {
    const bool holds = std::ranges::any_of(
        layers, [&](const std::string& layer) { return slice.layers.contains(layer); });
    if ((slice.step || slice.empty) && !holds) continue;
    const auto seen = std::max(whole_, slice.step);
    out = out ? std::min(*out, seen) : seen;
  }
  return out.value_or(whole_);
}

}  // namespace presum::compare
