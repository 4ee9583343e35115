// SPDX-License-Identifier: Apache-2.0
// Text for people: numbers, rank ranges, tables.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace presum::cli {

// Four significant digits; "-" for NaN, "inf" for infinity.
std::string number(double value);

// Ascending numbers as ranges: {0,1,2,3,8} is "0-3,8"; none is "-". Zeros fill up to `width`.
std::string ranges(const std::vector<std::uint32_t>& numbers, std::size_t width = 1);

// "rank 3" or "ranks 0-3,8".
std::string ranks(const std::vector<std::uint32_t>& numbers);

// Host names, printable, those that differ in their last number alone as one: "node[0-3,8], login";
// of many different ones the first few and how many more.
std::string hosts(const std::vector<std::string>& names);

// Columns padded to their widest cell; the first is left-aligned, the others right-aligned.
// REQUIRES: every row has as many cells as the first.
std::string table(const std::vector<std::vector<std::string>>& rows);

// The text with '?' for what is no UTF-8 (a run may hold any bytes) and for characters that control
// a terminal, turn the direction of text or are not seen.
std::string printable(std::string_view text);

// "1,000,000".
std::string counted(std::uint64_t value);

}  // namespace presum::cli
