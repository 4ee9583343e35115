// SPDX-License-Identifier: Apache-2.0
// Numbers and strings of a run as JSON that can be embedded in an HTML page.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

namespace presum::report {

using Json = nlohmann::ordered_json;

// Rounds to the digits that a chart can show; null for NaN and Inf.
Json number(double value, int digits = 5);
inline constexpr int kTableDigits = 7;  // digits that a table shows
// sum / count; NaN if count is 0.
double ratio(double sum, std::uint64_t count);
Json numbers(std::span<const double> values);

// Compact JSON text without '<', '>', '&', U+2028 or U+2029 (they are escaped), so that no string
// in it can end a script element. Invalid UTF-8 becomes U+FFFD.
std::string embeddable(const Json& json);

// The text with every `what` replaced.
std::string replaced(std::string_view text, std::string_view what, std::string_view by);

}  // namespace presum::report
