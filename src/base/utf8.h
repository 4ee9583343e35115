// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace presum::base {

struct Character {
  char32_t code = 0;
  std::size_t bytes = 0;  // 0: the text does not start with a valid UTF-8 character
};

// REQUIRES: the text is not empty.
Character first_character(std::string_view text);

// Returns the text with each byte outside a valid character replaced by U+FFFD.
std::string valid_utf8(std::string_view text);

}  // namespace presum::base
