// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace presum::base {

struct Character {
  char32_t code = 0;
  std::size_t bytes = 0;  // 0: the text does not begin with a character of UTF-8
};

// REQUIRES: the text is not empty.
Character first_character(std::string_view text);

// The text with U+FFFD for each byte that belongs to no character.
std::string valid_utf8(std::string_view text);

}  // namespace presum::base
