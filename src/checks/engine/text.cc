// SPDX-License-Identifier: Apache-2.0
#include "checks/engine/text.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>

namespace presum::checks {
namespace {

constexpr std::size_t kPieces = 16;
constexpr std::uint64_t kLargestCount = std::uint64_t{1} << 48;  // larger values are hashes

}  // namespace

std::string rank_ranges(std::span<const std::uint32_t> ranks) {
  std::string out;
  std::size_t pieces = 0;
  for (std::size_t first = 0; first < ranks.size();) {
    std::size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (pieces++ == kPieces) return out + ",...";
    if (!out.empty()) out += ',';
    out += last == first ? fmt::format("{}", ranks[first])
                         : fmt::format("{}-{}", ranks[first], ranks[last]);
    first = last + 1;
  }
  return out;
}

std::string rank_words(std::span<const std::uint32_t> ranks, bool everyone) {
  if (everyone && ranks.size() == 2) return "Both ranks";
  if (everyone && ranks.size() > 2) return fmt::format("All {} ranks", ranks.size());
  return fmt::format("{} {}", ranks.size() == 1 ? "Rank" : "Ranks", rank_ranges(ranks));
}

std::string number(double value) {
  return std::isnan(value) ? "unknown" : fmt::format("{:.3g}", value);
}

std::string value_text(const FingerprintInfo& kind, std::uint64_t value) {
  if (kind.real) return fmt::format("{:.6g}", std::bit_cast<double>(value));
  return value < kLargestCount ? fmt::format("{}", value) : fmt::format("{:#018x}", value);
}

std::string shortened(std::string_view text, std::size_t bytes) {
  if (text.size() <= bytes) return std::string(text);
  std::size_t end = bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return std::string(text.substr(0, end)) + "...";
}

}  // namespace presum::checks
