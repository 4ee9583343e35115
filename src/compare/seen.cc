// SPDX-License-Identifier: Apache-2.0
#include "compare/seen.h"

#include <algorithm>

namespace presum::compare {

void LastSeen::equal(std::uint64_t step, const Hashed& hashed,
                     const std::vector<std::string>& layers) {
  if (hashed.whole) whole_ = step;
  if (!hashed.slice) return;
  Slice& slice = slices_[*hashed.slice];
  slice.step = step;
  slice.layers.insert(layers.begin(), layers.end());
}

std::optional<std::uint64_t> LastSeen::of(const Hashed& hashed,
                                          const std::vector<std::string>& layers) const {
  if (hashed.slice) return std::max(whole_, slices_[*hashed.slice].step);
  return hashed.whole ? of_layers(layers) : whole_;
}

bool LastSeen::all_after_start() const {
  return whole_ > 0 ||
         std::ranges::all_of(slices_, [](const Slice& s) { return s.step > 0 || s.empty; });
}

// The slice that was seen the longest time ago decides; one that never came up may hold any layer.
std::optional<std::uint64_t> LastSeen::of_layers(const std::vector<std::string>& layers) const {
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
