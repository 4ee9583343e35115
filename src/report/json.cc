// SPDX-License-Identifier: Apache-2.0
#include "report/json.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <string_view>

namespace presum::report {
namespace {

// The UTF-8 of U+2028 and U+2029 but for their last byte, 0xA8 or 0xA9.
constexpr std::string_view kSeparatorLead = "\xE2\x80";

bool is_line_separator(std::string_view text) {
  return text.size() >= 3 && text.starts_with(kSeparatorLead) &&
         (text[2] == '\xA8' || text[2] == '\xA9');
}

}  // namespace

Json number(double value, int digits) {
  if (!std::isfinite(value)) return nullptr;
  return std::strtod(fmt::format("{:.{}g}", value, digits).c_str(), nullptr);
}

double ratio(double sum, std::uint64_t count) {
  return count == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / static_cast<double>(count);
}

Json numbers(std::span<const double> values) {
  Json out = Json::array();
  for (const double v : values) out.push_back(number(v));
  return out;
}

std::string embeddable(const Json& json) {
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '<' || c == '>' || c == '&') {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else if (is_line_separator(std::string_view(text).substr(i))) {
      out += text[i + 2] == '\xA8' ? "\\u2028" : "\\u2029";
      i += 2;
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace presum::report
