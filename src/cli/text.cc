// SPDX-License-Identifier: Apache-2.0
#include "cli/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "base/utf8.h"

namespace presum::cli {
namespace {

// The part that hosts share if they differ only in their last number, and that number's digit
// count.
using HostSeries = std::pair<std::string, std::size_t>;

std::pair<HostSeries, std::uint32_t> split_host(const std::string& name) {
  constexpr std::size_t kDigitsMax = 9;
  const auto last = name.find_last_not_of("0123456789");
  const auto cut = last == std::string::npos ? 0 : last + 1;
  const auto digits = name.size() - cut;
  if (digits == 0 || digits > kDigitsMax) return {{name, 0}, 0};
  return {{name.substr(0, cut), digits}, static_cast<std::uint32_t>(std::stoul(name.substr(cut)))};
}

std::string series_text(const HostSeries& series, std::vector<std::uint32_t> numbers) {
  const auto& [prefix, width] = series;
  if (width == 0) return prefix;
  std::ranges::sort(numbers);
  const auto text = ranges(numbers, width);
  return numbers.size() == 1 ? prefix + text : fmt::format("{}[{}]", prefix, text);
}

// Of Levenshtein.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, row[j + 1] + 1, changed});
    }
  }
  return row.back();
}

// Control characters, and characters that change the text direction, break lines, are invisible, or
// are none.
bool steers(char32_t c) {
  constexpr std::pair<char32_t, char32_t> kRanges[] = {
      {0x00, 0x1F},     {0x7F, 0x9F},     {0xAD, 0xAD},     {0x61C, 0x61C},
      {0x180E, 0x180E}, {0x200B, 0x200F}, {0x2028, 0x202E}, {0x2060, 0x206F},
      {0xFEFF, 0xFEFF}, {0xFFF9, 0xFFFB}, {0xFFFE, 0xFFFF}, {0xE0000, 0xE007F}};
  return std::ranges::any_of(kRanges, [&](const auto& r) { return c >= r.first && c <= r.second; });
}

}  // namespace

std::string number(double value) {
  if (std::isnan(value)) return "-";
  if (std::abs(value) < 1e-12) return "0";
  return fmt::format("{:.4g}", value);
}

std::string ranges(const std::vector<std::uint32_t>& numbers, std::size_t width) {
  std::string out;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i;
    while (end + 1 < numbers.size() && numbers[end + 1] == numbers[end] + 1) ++end;
    if (!out.empty()) out += ',';
    out += fmt::format("{:0{}}", numbers[i], width);
    if (end > i) out += fmt::format("-{:0{}}", numbers[end], width);
    i = end + 1;
  }
  return out.empty() ? "-" : out;
}

std::string ranks(const std::vector<std::uint32_t>& numbers) {
  return fmt::format("rank{} {}", numbers.size() == 1 ? "" : "s", ranges(numbers));
}

std::string hosts(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 8;
  std::map<HostSeries, std::vector<std::uint32_t>> series;
  for (const std::string& name : names) {
    auto [key, value] = split_host(name);
    series[std::move(key)].push_back(value);
  }
  std::vector<std::string> out;
  out.reserve(series.size());
  for (auto& [key, values] : series) out.push_back(series_text(key, std::move(values)));
  const auto more = out.size() - std::min(out.size(), kShown);
  out.resize(out.size() - more);
  if (more > 0) out.push_back(fmt::format("and {} more", more));
  return printable(fmt::format("{}", fmt::join(out, ", ")));
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
  while (!text.empty()) {
    const base::Character c = base::first_character(text);
    if (c.bytes == 0 || steers(c.code)) {
      out += '?';
    } else {
      out += text.substr(0, c.bytes);
    }
    text.remove_prefix(std::max<std::size_t>(c.bytes, 1));
  }
  return out;
}

std::string nearest(std::string_view name, std::span<const std::string_view> known) {
  const auto off = [&](std::string_view one) { return distance(name.substr(0, 64), one); };
  const auto near = std::ranges::min_element(known, {}, off);
  if (near == known.end() || off(*near) > near->size() / 3) return "";
  return fmt::format(" ({}?)", *near);
}

std::string counted(std::uint64_t value) {
  const std::string digits = fmt::format("{}", value);
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

}  // namespace presum::cli
