// SPDX-License-Identifier: Apache-2.0
#include "cli/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/try.h"
#include "cli/text.h"

namespace presum::cli {
namespace {

constexpr std::uint64_t kHeaderMax = 65'536;
constexpr DtypeName kDtypes[] = {{"<f4", Dtype::kF32}, {"<f8", Dtype::kF64}, {"<f2", Dtype::kF16}};

// The text after `'key':` in a .npy header, up to its end; empty if the key is not there.
std::string_view after_key(std::string_view header, std::string_view key) {
  for (const char quote : {'\'', '"'}) {
    const auto at = header.find(fmt::format("{}{}{}", quote, key, quote));
    if (at == std::string_view::npos) continue;
    auto rest = header.substr(at + key.size() + 2);
    const auto value = rest.find_first_not_of(" :");
    return value == std::string_view::npos ? std::string_view() : rest.substr(value);
  }
  return {};
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \n") - first + 1);
}

// At most 10 * 2^58; none for anything but digits.
std::optional<std::uint64_t> digits(std::string_view text) {
  std::uint64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9' || value > (std::uint64_t{1} << 58)) return std::nullopt;
    value = value * 10 + static_cast<std::uint64_t>(c - '0');
  }
  return text.empty() ? std::nullopt : std::optional(value);
}

// "(3, 4)" as numbers, as Python writes a tuple; none for anything else.
std::optional<std::vector<std::uint64_t>> shape_of(std::string_view text) {
  const auto end = text.find(')');
  if (text.empty() || text.front() != '(' || end == std::string_view::npos) return std::nullopt;
  const auto after = trimmed(text.substr(end + 1));
  if (after.empty() || (after.front() != ',' && after.front() != '}')) return std::nullopt;
  std::vector<std::uint64_t> shape;
  bool comma = false;
  for (auto rest = trimmed(text.substr(1, end - 1)); !rest.empty();) {
    const auto stop = std::min(rest.find(','), rest.size());
    const auto number = digits(trimmed(rest.substr(0, stop)));
    if (!number) return std::nullopt;
    shape.push_back(*number);
    comma = stop < rest.size();
    rest = comma ? trimmed(rest.substr(stop + 1)) : std::string_view();
  }
  return shape.size() == 1 && !comma ? std::nullopt : std::optional(shape);  // (3) is a number
}

// The quoted word that a text begins with.
std::string_view quoted(std::string_view text) {
  if (text.empty() || (text.front() != '\'' && text.front() != '"')) return {};
  const auto end = text.find(text.front(), 1);
  return end == std::string_view::npos ? std::string_view() : text.substr(1, end - 1);
}

// Two bytes without a meaning of their own.
bool is_raw16(std::string_view descr) {
  return descr == "<V2" || descr == "|V2" || descr == "<u2" || descr == "<i2";
}

Result<Dtype> dtype_of_descr(const InputFile& file, std::string_view descr,
                             std::optional<Dtype> raw) {
  const auto bad = [&](ErrorCode code, const std::string& what) {
    return file.error(code, what).error();
  };
  if (const auto known = find_dtype(kDtypes, descr)) return *known;
  if (descr.starts_with('>')) {
    return bad(ErrorCode::kUnsupported, fmt::format("big-endian ({}); save x.astype('<{}')",
                                                    printable(descr), printable(descr.substr(1))));
  }
  if (!is_raw16(descr)) {
    return bad(ErrorCode::kUnsupported,
               fmt::format("holds {}; fp32, fp64, fp16 and bf16 are possible", printable(descr)));
  }
  if (!raw || element_bytes(*raw) != 2) {
    return bad(ErrorCode::kInvalidArgument,
               "two bytes an element: say what they are with --dtype bf16");
  }
  return *raw;
}

}  // namespace

bool is_npy(std::string_view begin) { return begin == "\x93NUMPY"; }

Result<TensorLayout> read_npy(InputFile& file, std::optional<Dtype> raw) {
  const auto bad = [&](ErrorCode code, const std::string& what) {
    return file.error(code, what).error();
  };
  const std::uint64_t size = file.size();
  const auto cut = [&] { return bad(ErrorCode::kCorrupt, "cut off: the .npy is not whole"); };
  if (size < 12) return cut();
  PRESUM_ASSIGN(const auto fixed, file.text(0, 12));
  const auto version = static_cast<unsigned char>(fixed[6]);
  if (version < 1 || version > 3) return bad(ErrorCode::kUnsupported, "an unknown .npy version");
  const bool one = version == 1;
  std::uint64_t length = 0;
  std::memcpy(&length, fixed.data() + 8, one ? 2 : 4);
  const std::uint64_t begin = one ? 10 : 12;
  if (length > kHeaderMax) return bad(ErrorCode::kCorrupt, "the .npy header is too long");
  if (size < begin + length) return cut();
  PRESUM_ASSIGN(const auto header, file.text(begin, length));

  const auto shape = shape_of(after_key(header, "shape"));
  const auto order = after_key(header, "fortran_order");
  const bool by_columns = order.starts_with("True");
  if (!shape || (!by_columns && !order.starts_with("False"))) {
    return bad(ErrorCode::kCorrupt, "the .npy header cannot be read");
  }
  PRESUM_ASSIGN(const auto dtype, dtype_of_descr(file, quoted(after_key(header, "descr")), raw));
  if (shape->size() > 1 && by_columns) {
    return bad(ErrorCode::kUnsupported, "stored by columns; save numpy.ascontiguousarray(x)");
  }
  const auto count = count_of(*shape);
  const auto bytes = count ? product(*count, element_bytes(dtype)) : std::nullopt;
  const std::uint64_t there = size - begin - length;
  if (!bytes || there < *bytes) return cut();
  if (there > *bytes) {
    return bad(
        ErrorCode::kCorrupt,
        fmt::format("{} bytes behind the array: more than one array, or damaged", there - *bytes));
  }
  return TensorLayout{.dtype = dtype,
                      .rows = shape->size() > 1 && *count > 0 ? shape->front() : 1,
                      .elements = *count,
                      .tensors = {{"", *count, begin + length}}};
}

}  // namespace presum::cli
