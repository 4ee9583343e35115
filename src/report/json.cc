// SPDX-License-Identifier: Apache-2.0
#include "report/json.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <utility>

namespace presum::report {

std::string replaced(std::string_view text, std::string_view what, std::string_view by) {
  std::string out;
  out.reserve(text.size());
  std::size_t done = 0;
  for (auto at = text.find(what); at != text.npos; at = text.find(what, done)) {
    out.append(text.substr(done, at - done)).append(by);
    done = at + what.size();
  }
  return out.append(text.substr(done));
}

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
  constexpr std::pair<std::string_view, std::string_view> kEscapes[] = {
      {"<", "\\u003c"},
      {">", "\\u003e"},
      {"&", "\\u0026"},
      {"\xE2\x80\xA8", "\\u2028"},
      {"\xE2\x80\xA9", "\\u2029"}};
  std::string out = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  for (const auto& [text, escape] : kEscapes) out = replaced(out, text, escape);
  return out;
}

}  // namespace presum::report
