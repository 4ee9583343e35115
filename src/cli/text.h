// SPDX-License-Identifier: Apache-2.0
// Text for people: numbers, rank ranges, tables.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace presum::cli {

// Four significant digits; "-" for NaN, "inf" for infinity.
std::string number(double value);

// Ascending numbers as ranges: {0,1,2,3,8} is "0-3,8"; none is "-". Pads with zeros to `width`.
std::string ranges(const std::vector<std::uint32_t>& numbers, std::size_t width = 1);

// "rank 3" or "ranks 0-3,8".
std::string ranks(const std::vector<std::uint32_t>& numbers);

// Host names, printable; names that differ only in their last number are joined: "node[0-3,8],
// login". If there are many different names, only the first few and the number of the rest.
std::string hosts(const std::vector<std::string>& names);

// Columns padded to their widest cell; the first is left-aligned, the others right-aligned.
// REQUIRES: all rows have the same number of cells.
std::string table(const std::vector<std::vector<std::string>>& rows);

// Replaces invalid UTF-8 (a run may hold any bytes), and characters that control a terminal, change
// the text direction or are invisible, by '?'.
std::string printable(std::string_view text);

// " (duplicate-data?)": the known name that is closest; empty if none is close.
std::string nearest(std::string_view name, std::span<const std::string_view> known);

// "1,000,000".
std::string counted(std::uint64_t value);

}  // namespace presum::cli
