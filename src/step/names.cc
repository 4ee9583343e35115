// SPDX-License-Identifier: Apache-2.0
#include "step/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <span>
#include <vector>

namespace presum::step {
namespace {

constexpr std::string_view kWrapperParts[] = {"module", "_orig_mod", "_fsdp_wrapped_module",
                                              "_checkpoint_wrapped_module"};

std::vector<std::string_view> split_path(std::string_view name) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    parts.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string join_path(std::span<const std::string_view> parts) {
  return fmt::format("{}", fmt::join(parts, "."));
}

bool is_number(std::string_view part) {
  return !part.empty() && std::all_of(part.begin(), part.end(),
                                      [](unsigned char c) { return std::isdigit(c) != 0; });
}

}  // namespace

std::string canonical_name(std::string_view name) {
  auto parts = split_path(name);
  const auto is_wrapper = [](std::string_view part) {
    return std::ranges::find(kWrapperParts, part) != std::end(kWrapperParts);
  };
  // The last part is the parameter's own name and is always kept.
  const auto last = parts.back();
  parts.pop_back();
  std::erase_if(parts, is_wrapper);
  parts.push_back(last);
  return join_path(parts);
}

std::string default_group(std::string_view canonical) {
  const auto parts = split_path(canonical);
  const auto number = std::find_if(parts.begin(), parts.end(), is_number);
  const auto kept = number != parts.end() ? static_cast<std::size_t>(number - parts.begin()) + 1
                                          : std::min<std::size_t>(2, parts.size());
  return join_path(std::span(parts).first(kept));
}

}  // namespace presum::step
