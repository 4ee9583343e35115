// SPDX-License-Identifier: Apache-2.0
#include "cli/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace presum::cli {

std::string number(double value) {
  if (std::isnan(value)) return "-";
  if (std::abs(value) < 1e-12) return "0";
  return fmt::format("{:.4g}", value);
}

std::string ranges(const std::vector<std::uint32_t>& numbers) {
  std::string out;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i;
    while (end + 1 < numbers.size() && numbers[end + 1] == numbers[end] + 1) ++end;
    if (!out.empty()) out += ',';
    out +=
        end == i ? fmt::format("{}", numbers[i]) : fmt::format("{}-{}", numbers[i], numbers[end]);
    i = end + 1;
  }
  return out.empty() ? "-" : out;
}

std::string ranks(const std::vector<std::uint32_t>& numbers) {
  return fmt::format("rank{} {}", numbers.size() == 1 ? "" : "s", ranges(numbers));
}

std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line = fmt::format("{:<{}}", row[0], widths[0]);
    for (std::size_t c = 1; c < row.size(); ++c) line += fmt::format("  {:>{}}", row[c], widths[c]);
    out += line + '\n';
  }
  return out;
}

std::string printable(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    const bool upper = c == 0xC2 && next >= 0x80 && next <= 0x9F;  // U+0080 to U+009F in UTF-8
    out += c < 0x20 || c == 0x7F || upper ? '?' : text[i];
    if (upper) ++i;
  }
  return out;
}

}  // namespace presum::cli
