// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

#include <algorithm>

namespace presum::base {

Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const std::size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes) return {};
  char32_t code = lead & (0xFFU >> (bytes + 1));
  for (std::size_t at = 1; at < bytes; ++at) {
    if ((byte(at) & 0xC0) != 0x80) return {};
    code = (code << 6) | (byte(at) & 0x3FU);
  }
  // first code of each length in bytes
  constexpr char32_t kFirstOf[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (code < kFirstOf[bytes] || code > 0x10FFFF || surrogate) return {};
  return {code, bytes};
}

std::string valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character c = first_character(text);
    out += c.bytes == 0 ? std::string_view("\uFFFD") : text.substr(0, c.bytes);
    text.remove_prefix(std::max<std::size_t>(c.bytes, 1));
  }
  return out;
}

}  // namespace presum::base
