// SPDX-License-Identifier: Apache-2.0
// Ranks and values as text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "presum/fingerprint.h"

namespace presum::checks {

// "0-3,8"; at most 16 pieces, then "...". Empty for none. REQUIRES: ascending.
std::string rank_ranges(std::span<const std::uint32_t> ranks);
// "Rank 3", "Ranks 0-3,8", or "All 8 ranks" for everyone. REQUIRES: ascending.
std::string rank_words(std::span<const std::uint32_t> ranks, bool everyone);
// Three significant digits; "unknown" for NaN.
std::string number(double value);
// A fingerprint's value: a real number, a count, or the hexadecimal digits of a hash.
std::string value_text(const FingerprintInfo& kind, std::uint64_t value);
// At most `bytes` bytes of a text from a run, without cutting a UTF-8 character.
std::string shortened(std::string_view text, std::size_t bytes);
// "a, b, ...": the texts of at most `most` items.
template <class Items, class TextOf>
std::string joined(Items&& items, std::size_t most, const char* separator, const TextOf& text_of) {
  std::string out;
  std::size_t shown = 0;
  for (const auto& item : items) {
    if (shown++ == most) return out + separator + "...";
    if (shown > 1) out += separator;
    out += text_of(item);
  }
  return out;
}
// The same for names, of at most 64 bytes each.
template <class Items, class NameOf>
std::string first_names(const Items& items, std::size_t most, const NameOf& name_of) {
  return joined(items, most, ", ", [&](const auto& i) { return shortened(name_of(i), 64); });
}

}  // namespace presum::checks
